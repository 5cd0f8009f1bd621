/*
 * fence.pml
 *		The fence: writers, the worker that mints, entries in shared memory.
 *
 * One resource.  What the code does in one critical section, or in one
 * transaction, is one step here; between any two steps everybody else may run,
 * and nobody needs to go on: a pause of any length is an interleaving.  Nothing
 * measures time.  README.md says which function each step is.
 *
 * Sizes and features are set with -D (run by scripts/model); so are the
 * mutants, named M_..., each of which takes one part of the protocol away.
 */

#ifndef WRITERS
#define WRITERS 2
#endif
#ifndef TOKENS
#define TOKENS 3				/* the highest: grants are 2 to TOKENS */
#endif
#ifndef DEATHS
#define DEATHS 0				/* of the worker alone: shared memory stays */
#endif
#ifndef CRASHES
#define CRASHES 0				/* of the server: shared memory is lost */
#endif
#ifndef PROMOTIONS
#define PROMOTIONS 0
#endif
#ifndef EPOCHS
#define EPOCHS 0				/* begin_epoch() by a DBA */
#endif
#ifdef SYNC
#define STANDBY
#endif
#if PROMOTIONS > 0
#define STANDBY
#ifdef PREPARED
#error "prepared transactions of a lost history are not modelled"
#endif
#endif

#ifdef FORGED
#define LAST_TRIED (issued < TOKENS -> issued + 1 : TOKENS)
#else
#define LAST_TRIED issued
#endif

#define NONE	15
#define BIT(t)	(1 << (t))

/* Every check has a name: it stands in what spin says of a violation. */
#ifdef I2_ONLY
#define IGNORED 1				/* the others always hold */
#else
#define IGNORED 0
#endif
hidden byte I2 = 0;
hidden byte I1 = IGNORED, I3 = IGNORED, I7 = IGNORED, I8 = IGNORED;
hidden byte OVER = IGNORED;		/* who was over for somebody stays so, but for a crash */
hidden byte REVOKED = IGNORED;	/* so does who a DBA was told is revoked, whatever comes */
hidden byte FLOOR = IGNORED;		/* nothing at or below a begun epoch's floor is admitted */
hidden byte TOLD = IGNORED;		/* a synchronous standby has each grant that was told */

#define CHECK(name, c)	assert((c) || name)

/* ---- the database: survives a crash ---- */

byte g_latest = 0;				/* the resource's last grant in lease_fence.grants */
bool g_ended = false;			/* that one has ended_at */
byte g_floor = 1;				/* of the last epoch */
bool g_present = true;			/* which is of this history */
byte row_stamp = 0;				/* fence_token of the guarded row */

#ifdef STANDBY
byte s_latest = 0;				/* the same, as far as the standby has it */
bool s_ended = false;
byte s_floor = 1;
byte s_stamp = 0;
#define STANDBYS_PASSED			(promoted || s_latest >= g_latest)
#else
#define STANDBYS_PASSED			true
#endif
bool promoted = false;

/* ---- shared memory ---- */

byte shm_floor = 1;				/* 0: not confirmed */

bool e_there = false;			/* the entry, LfSlot and LfGrantState */
bool e_loading = false;
bool e_draining = false;
bool e_over = false;
bool e_lapsed = false;			/* the deadline has passed */
bool e_listed = false;			/* in_end_list */
bool e_written = false;			/* end_written */
bool e_unanswered = false;		/* its ticket is of a request under way */
byte e_token = 0;
byte e_joined = 0;				/* by whom this very load was begun, or joined */

byte epochs_left = EPOCHS;

/* ---- locks ---- */

byte locks[WRITERS];			/* tokens shared, by their bits: till the end */
byte locks_sp[WRITERS];			/* ... booked on the savepoint */
byte x_token = 0;				/* the worker's exclusive lock; 0: none */
byte row_lock = NONE;			/* whose uncommitted update the row has */

#define LOCKS_OF(w) (locks[w] | locks_sp[w])
#if WRITERS == 1
#define SHARED(t) (LOCKS_OF(0) & BIT(t))
#elif WRITERS == 2
#define SHARED(t) ((LOCKS_OF(0) | LOCKS_OF(1)) & BIT(t))
#else
#define SHARED(t) ((LOCKS_OF(0) | LOCKS_OF(1) | LOCKS_OF(2)) & BIT(t))
#endif

/* ---- transactions ---- */

byte snapshot[WRITERS];			/* the last grant that it sees, and 1; 0: none */
byte wrote[WRITERS];			/* lowest token written under; NONE: nothing */
byte wrote_sp[WRITERS];
byte stamped[WRITERS];			/* on the row, not committed; 0: nothing */
byte stamped_sp[WRITERS];
bool prepared[WRITERS];
bool crashed[WRITERS];
bool dies = false;				/* the worker is to */

/* ---- what only the checks look at ---- */

byte issued = 1;				/* highest token ever, also of what was lost */
byte told = 0;					/* highest that an asker was told */
byte dead = 0;					/* tokens that were over for somebody */
byte revoked = 0;				/* and those that a DBA was told of */
byte begun_floor = 0;			/* of an epoch that is known to have begun */
byte missed[WRITERS];			/* lowest token that committed after its snapshot */

/* ---- the entry's critical sections ---- */

inline slot_free() {
	e_there = false; e_loading = false; e_draining = false; e_over = false;
	e_lapsed = false; e_listed = false; e_written = false; e_unanswered = false;
	e_token = 0; e_joined = 0
}

inline set_over() {
	e_over = true;
	if
	:: !e_loading && e_token != 0 ->
		dead = dead | BIT(e_token);
		if :: !e_written -> e_listed = true :: else fi
	:: else
	fi
}

/*
 * lf_entry_begin_load.  Loads are numbered in the code; here each is known by
 * who takes part in it, which is the same.
 */
#define WORKER WRITERS
inline begin_load(who, inserted) {
	if
	:: !e_there -> slot_free(); e_there = true; e_loading = true; inserted = true
	:: else
	fi;
	if :: e_loading -> e_joined = e_joined | BIT(who) :: else fi
}

#ifdef M_STALE_FILL
#define TAKES_PART(who) true
#else
#define TAKES_PART(who) (e_joined & BIT(who))
#endif

/* lf_entry_fill: what the table said, unless it is loaded already. */
inline fill(who, token, ended, done) {
	if
	:: e_there && e_loading && TAKES_PART(who) ->
		e_loading = false;
		e_joined = 0;
		e_token = token;
		e_written = (token == 0 || ended);
#ifdef M_FILL_FORGETS_OVER
		e_over = (token == 0 || ended);
#else
		e_over = e_over || token == 0 || ended;
#endif
		if :: e_over && !e_written -> e_listed = true; dead = dead | BIT(token) :: else fi
	:: else
	fi;
	done = e_there && !e_loading && e_token == token
}

/* ---- writers ---- */

inline forget_transaction(w) {
	locks[w] = 0; locks_sp[w] = 0;
	wrote[w] = NONE; wrote_sp[w] = NONE; stamped[w] = 0; stamped_sp[w] = 0;
	snapshot[w] = 0; missed[w] = NONE;
	if :: row_lock == w -> row_lock = NONE :: else fi
}

inline saw_commit(v, w) {
	if :: v != w && snapshot[v] != 0 && wrote[w] < missed[v] -> missed[v] = wrote[w] :: else fi
}

/* Commit is one step: locks go after the commit is seen by all. */
inline commit(w) {
	atomic {
		if
		:: wrote[w] != NONE ->
			CHECK(I2, wrote[w] >= issued);
			saw_commit(0, w);
#if WRITERS > 1
			saw_commit(1, w);
#endif
#if WRITERS > 2
			saw_commit(2, w);
#endif
		:: else
		fi;
		if
		:: stamped[w] != 0 ->
			CHECK(I3, stamped[w] >= row_stamp);
			row_stamp = stamped[w]
		:: else
		fi;
		forget_transaction(w)
	}
}

/* Takes the token's lock at this level; fresh: this call did. */
inline share(w, t, had, fresh) {
	if
	:: x_token == t -> had = false; fresh = false
	:: else ->
		had = true;
		if
		:: in_savepoint -> fresh = !(locks_sp[w] & BIT(t)); locks_sp[w] = locks_sp[w] | BIT(t)
		:: else -> fresh = !(locks[w] & BIT(t)); locks[w] = locks[w] | BIT(t)
		fi
	fi
}

inline unshare(w, t) {
	if
	:: fresh && in_savepoint -> locks_sp[w] = locks_sp[w] & ~BIT(t)
	:: fresh && !in_savepoint -> locks[w] = locks[w] & ~BIT(t)
	:: else
	fi;
	fresh = false
}

#ifdef ACCEPT_LAPSED
#define ADMITS_LAPSED(w) (w == 0)	/* one guard does, the other does not */
#else
#define ADMITS_LAPSED(w) false
#endif

#ifdef M_GREATER_OR_EQUAL
#define IS_CURRENT(t) (t >= e_token)
#else
#define IS_CURRENT(t) (t == e_token)
#endif

#define GRANT_ADMITS(w) (!e_draining && !e_over && (!e_lapsed || ADMITS_LAPSED(w)))

proctype writer(byte w)
{
	byte t = 0;					/* the token it presents */
	byte floor = 0;
	byte seen = 0;				/* what the table said while loading */
	bool seen_ended = false;
	bool in_savepoint = false;
	bool updates = false;		/* the row; else it inserts one */
	bool loads = false;
	bool mine = false;
	bool fresh = false;
	bool ok = false;
#ifdef M_CHECKED_FLAG
	bool checked = false;
#endif

end_between:
	{ {
		if
		:: atomic {				/* a statement, and its snapshot */
#ifdef REPEATABLE_READ
			if
			:: snapshot[w] == 0 -> snapshot[w] = g_latest + 1
			:: else
			fi;
#else
			snapshot[w] = g_latest + 1;
#endif
#ifdef ROWS
			updates = true;
#endif
#ifdef INSERTS
			if :: true :: updates = false fi
#endif
			};
			goto statement
#ifdef SAVEPOINTS
		:: atomic { !in_savepoint -> in_savepoint = true; goto end_between }
		:: atomic { in_savepoint -> goto rollback_to_savepoint }
		:: atomic { in_savepoint ->	/* RELEASE: what it has is its parent's */
			locks[w] = locks[w] | locks_sp[w]; locks_sp[w] = 0;
			if :: wrote_sp[w] < wrote[w] -> wrote[w] = wrote_sp[w] :: else fi;
			if :: stamped_sp[w] != 0 -> stamped[w] = stamped_sp[w] :: else fi;
			wrote_sp[w] = NONE; stamped_sp[w] = 0; in_savepoint = false;
			goto end_between }
#endif
#ifdef PREPARED
		:: atomic { !in_savepoint && wrote[w] != NONE -> prepared[w] = true; goto is_prepared }
#endif
		:: atomic { !in_savepoint && wrote[w] != NONE -> commit(w);
#ifdef M_CHECKED_FLAG
			checked = false;
#endif
			goto end_between }
		:: atomic { !in_savepoint && (wrote[w] != NONE || snapshot[w] != 0) -> goto rollback }
		fi;

statement:
#ifdef ROWS
		/* An update has its row locked before the guard's trigger looks. */
		if
		:: updates -> atomic { row_lock == NONE || row_lock == w -> row_lock = w }
		:: else
		fi;
#endif
#if CRASHES > 0 || PROMOTIONS > 0 || EPOCHS > 0
		/* lf_epoch_confirmed */
		atomic {
			if
			:: shm_floor != 0 -> floor = shm_floor
			:: shm_floor == 0 && g_present -> floor = g_floor; ok = true
			:: else -> goto refused
			fi
		};
		if
		:: atomic { ok -> ok = false; if :: shm_floor < floor -> shm_floor = floor :: else fi }
		:: else
		fi;
#else
		atomic { floor = 1 };
#endif

first_look:
		atomic {
			if
			:: loads
			:: else ->			/* any token, and one that nobody was given */
				t = 2;
				do
				:: t < LAST_TRIED -> t++
				:: break
				od
			fi;
#ifdef M_STAMP_ALONE
			if						/* what every published example does */
			:: updates && row_stamp <= t && t <= issued -> goto accepted
			:: else -> goto refused
			fi;
#endif
#ifdef M_CHECKED_FLAG
			if :: checked -> goto accepted :: else fi;
#endif
			if
			:: e_there && !e_loading ->
				if
				:: IS_CURRENT(t) && t > floor && GRANT_ADMITS(w)
				:: else -> goto refused
				fi
			:: else ->
				if
				:: !loads && t > floor && t <= g_latest -> loads = true; goto load
				:: else -> goto refused
				fi
			fi;
			loads = false; floor = 0
		};
		goto lock;

load:							/* lf_check_load, load_locked */
#ifndef M_ANY_READER_LOADS
		atomic {
			share(w, t, ok, fresh);
			if :: !ok -> goto refused :: else -> ok = false fi
		};
		atomic {
			if :: g_latest != t -> unshare(w, t); goto refused :: else fi
		};
#endif
		atomic { begin_load(w, mine) };
		atomic { seen = g_latest; seen_ended = g_ended };
#ifdef M_ANY_READER_LOADS
		atomic { fill(w, seen, seen_ended, ok) };
#else
		atomic {
			if :: seen == t -> fill(w, seen, seen_ended, ok) :: else fi
		};
#endif
		if
		:: atomic { !ok && mine ->	/* lf_entry_cancel_load */
			if
			:: e_there && e_loading && TAKES_PART(w) && !e_over && !e_draining -> slot_free()
			:: else
			fi }
		:: else
		fi;
		atomic {
			unshare(w, t); seen = 0; seen_ended = false; mine = false;
			if :: ok -> ok = false; goto first_look :: else -> goto refused fi
		};

lock:							/* lock_and_look */
#ifndef M_NO_SHARE_LOCK
		atomic {
			share(w, t, ok, fresh);
			if :: !ok -> goto refused :: else -> ok = false fi
		};
#endif
		/* second_look, snapshots_see, and the stored stamp (check_row) */
		atomic {
			if
#ifndef M_NO_SECOND_LOOK
			:: !(e_there && !e_loading && IS_CURRENT(t) && GRANT_ADMITS(w)) ->
				unshare(w, t); goto refused
#endif
#ifndef M_NO_SNAPSHOT_CHECK
			:: snapshot[w] - 1 < t && t <= issued -> unshare(w, t); goto refused
#endif
			:: updates && row_stamp > t -> unshare(w, t); goto refused
			:: else ->
#ifndef M_NO_SECOND_LOOK
				CHECK(I7, t <= issued);
				CHECK(OVER, !(dead & BIT(t)));
				CHECK(REVOKED, !(revoked & BIT(t)));
				CHECK(FLOOR, t > begun_floor);
#endif
				CHECK(I8, missed[w] >= t)
			fi;

accepted:						/* the row is written, and stamped */
			if
			:: in_savepoint ->
				if :: t < wrote_sp[w] -> wrote_sp[w] = t :: else fi;
				if :: updates -> stamped_sp[w] = t :: else fi
			:: else ->
				if :: t < wrote[w] -> wrote[w] = t :: else fi;
				if :: updates -> stamped[w] = t :: else fi
			fi;
#ifdef M_LOCK_TO_STATEMENT_END
			unshare(w, t);
#endif
#ifdef M_CHECKED_FLAG
			checked = true;
#endif
			t = 0; fresh = false; updates = false; floor = 0;
#ifndef REPEATABLE_READ
			snapshot[w] = 0; missed[w] = NONE;
#endif
			goto end_between
		};

refused:						/* the statement fails */
		atomic {
			t = 0; fresh = false; updates = false; loads = false; floor = 0; ok = false;
			seen = 0; seen_ended = false; mine = false;
			if
			:: in_savepoint -> goto rollback_to_savepoint
			:: else -> goto rollback
			fi
		};

rollback_to_savepoint:
		atomic {
			locks_sp[w] = 0; wrote_sp[w] = NONE; stamped_sp[w] = 0; in_savepoint = false;
#ifndef REPEATABLE_READ
			snapshot[w] = 0; missed[w] = NONE;
#endif
			if :: row_lock == w && stamped[w] == 0 -> row_lock = NONE :: else fi;
			goto end_between
		};

rollback:
		atomic {
			forget_transaction(w);
#ifdef M_CHECKED_FLAG
			checked = false;
#endif
			goto end_between
		};

#ifdef PREPARED
is_prepared:					/* no crash ends it: COMMIT or ROLLBACK PREPARED does */
		if
		:: atomic { commit(w); prepared[w] = false }
		:: atomic { forget_transaction(w); prepared[w] = false }
		fi;
		goto end_between
#endif
	} unless {
		d_step {
			crashed[w] -> crashed[w] = false;
			t = 0; floor = 0; seen = 0; seen_ended = false; in_savepoint = false;
			updates = false; loads = false; mine = false; fresh = false; ok = false
		}
	} };
	goto end_between
}

/* ---- the worker ---- */

/* lf_mint_load */
inline load_entry() {
	do
	:: e_there && !e_loading -> break
	:: else ->
		d_step { begin_load(WORKER, ok) };
		d_step {
			fill(WORKER, g_latest, g_ended, ok);
			/* of another epoch: it holds nothing */
			if
			:: e_token != 0 && e_token <= shm_floor && !e_over -> set_over()
			:: else
			fi
		}
	od
}

/* lf_epoch_begin's transaction; the clock is above all that was ever issued */
inline commit_epoch() {
	d_step {
#ifdef M_NO_FLOOR
		g_floor = (g_latest > g_floor -> g_latest : g_floor);
#else
		g_floor = (issued > g_floor -> issued : g_floor);
#endif
		g_ended = true; g_present = true
	}
}

proctype worker()
{
	byte old = 0;
	byte new = 0;
	bool ok = false;
	bool revokes = false;

start:
	{ {
		/* lf_queue_recover: whom it published for was told nothing */
		d_step {
			if
			:: e_there && e_unanswered ->
				e_unanswered = false;
				if :: !e_over -> set_over() :: else fi
			:: else
			fi
		};

		/* lf_mint_recover, settle_entry */
		if
		:: e_there && e_draining ->
			STANDBYS_PASSED;
			d_step {
				if
				:: g_latest > e_token ->
					slot_free(); e_there = true; e_token = g_latest;
					set_over()
				:: else ->
					e_draining = false;
#ifdef M_RELOAD_FORGETS_OVER
					if
					:: e_over && !g_ended -> e_over = false; e_listed = false
					:: else
					fi
#endif
				fi
			}
		:: else
		fi;

		/* epoch_is_ready */
		if
		:: shm_floor == 0 && g_present -> shm_floor = g_floor
		:: shm_floor == 0 && !g_present ->
			commit_epoch();
			shm_floor = g_floor;
			d_step { slot_free(); begun_floor = g_floor }
		:: else
		fi;

end_pass:
		do
		/* a grant, or a revocation, is asked for */
		:: (g_latest < TOKENS && shm_floor < TOKENS) || g_latest >= 2 ->
			if
			:: g_latest < TOKENS && shm_floor < TOKENS -> revokes = false
#ifdef REVOKES
			:: g_latest >= 2 -> revokes = true
#endif
			:: break
			fi;
			load_entry();

			/* step 1: lf_mint_begin */
			atomic {
				if
#ifdef M_TWO_MINTS
				:: e_there && !e_loading ->
#else
				:: e_there && !e_loading && !e_draining ->
#endif
					old = e_token;
#ifdef M_NO_STEP_1
#elif defined(M_NO_OVER)
					e_draining = true;
#else
					if :: !e_over -> set_over() :: else fi;
#ifndef M_NO_DRAINING
					e_draining = true;
#endif
#endif
				:: else -> goto end_pass	/* evicted meanwhile: later */
				fi
			};

			/* step 2: lf_mint_drain, tried till it succeeds or the asker gives up */
			if
#ifdef M_NO_EXCLUSIVE_WAIT
			:: true ->
#else
			:: atomic { old == 0 || !SHARED(old) -> x_token = old };
#endif
			:: true -> goto abandon
			fi;

			if
			:: revokes ->		/* lf_finish_revoke: its end is in the table before the answer */
#ifndef M_REVOKE_UNWRITTEN
				d_step { if :: g_latest == old -> g_ended = true :: else fi };
				d_step { if :: e_there && e_token == old -> e_listed = false; e_written = true :: else fi };
				STANDBYS_PASSED;
#endif
				revoked = revoked | BIT(old);
				goto abandon
			:: else
			fi;
			if
			:: true
			:: goto abandon		/* withdrawn, or the mint fails */
			fi;

			/* step 3: mint_all */
			d_step {
				new = (g_latest > shm_floor -> g_latest : shm_floor) + 1;
				CHECK(I1, new > issued);
				CHECK(I7, !e_there || e_over || e_token == 0 || e_token <= begun_floor);
				g_latest = new; g_ended = false;
				issued = new
			};
#ifndef M_PUBLISH_EARLY
			STANDBYS_PASSED;
#endif
			/* step 4: lf_mint_publish; who withdrew is published as over */
			d_step {
				if
				:: e_there ->
					slot_free(); e_there = true; e_token = new; e_unanswered = true
				:: else
				fi
			};
			x_token = 0;
			d_step {
				if :: e_there && e_token == new -> e_unanswered = false :: else fi;
				if :: told < new -> told = new :: else fi;
				old = 0; new = 0
			};
			break

		/* lf_ends_write: taken, committed, noted */
		:: e_there && e_listed && !e_loading ->
			d_step { old = e_token; if :: g_latest == old -> g_ended = true :: else fi };
			d_step {
				if
				:: e_there && e_listed && e_token == old -> e_listed = false; e_written = true
				:: else
				fi;
				old = 0
			};
			break

		/* lf_entry_sweep */
		:: d_step {
				e_there && !e_loading && e_lapsed && !e_over && !e_written && !e_listed ->
				e_listed = true
			};
			break

#if EPOCHS > 0
		/* begin_requested_epoch */
		:: epochs_left > 0 && issued < TOKENS ->
			epochs_left--;
			commit_epoch();
			shm_floor = g_floor;
			d_step { slot_free(); begun_floor = g_floor };
			break
#endif
		od;
		goto end_pass;

abandon:						/* lf_mint_abandon */
		x_token = 0;
		d_step { if :: e_there -> e_draining = false :: else fi; old = 0; revokes = false };
		goto end_pass
	} unless {
		d_step {				/* its locks go with it */
			dies -> dies = false;
			x_token = 0; old = 0; new = 0; ok = false; revokes = false
		}
	} };
	goto start
}

/* ---- everybody else ---- */

/* lf_entry_end, a deadline that passes, evict */
proctype anybody()
{
end_wait:
	do
	:: d_step { e_there && !e_loading && !e_over && e_token != 0 -> set_over() }
	:: d_step { e_there && e_loading && !e_over -> e_over = true; dead = dead | BIT(g_latest) }
#ifdef ACCEPT_LAPSED
	:: d_step { e_there && !e_loading && !e_over && !e_lapsed && e_token != 0 -> e_lapsed = true }
#endif
#ifdef EVICTION
#ifdef M_EVICT_UNWRITTEN
	:: d_step { e_there && e_over && !e_draining && !e_loading -> slot_free() }
#else
	:: d_step { e_there && e_written && !e_draining && !e_loading -> slot_free() }
#endif
#endif
#ifdef M_LOCK_OF_PORTAL
	/* a cursor fails in a savepoint: the lock was booked on its owner */
	:: locks[0] = 0
#endif
	od
}

inline crash_writer(w) {
	if
	:: prepared[w]
	:: else -> forget_transaction(w); crashed[w] = true
	fi
}

/* Shared memory is lost, and every transaction that is not prepared. */
inline crash() {
	slot_free();
	shm_floor = 0;
	x_token = 0;
	dies = true;
	crash_writer(0);
#if WRITERS > 1
	crash_writer(1);
#endif
#if WRITERS > 2
	crash_writer(2);
#endif
	dead = (g_ended -> BIT(g_latest) : 0)
}

proctype environment()
{
	byte deaths = DEATHS;
	byte crashes = CRASHES;
	byte promotions = PROMOTIONS;

end_wait:
	do
	:: d_step { deaths > 0 && !dies -> deaths--; dies = true }
	:: d_step { crashes > 0 -> crashes--; crash() }
#ifdef STANDBY
	:: d_step {
			!promoted && (s_latest != g_latest || s_ended != g_ended ||
						  s_floor != g_floor || s_stamp != row_stamp) ->
			s_latest = g_latest; s_ended = g_ended; s_floor = g_floor; s_stamp = row_stamp
		}
	:: d_step {
			promotions > 0 ->
			promotions--;
			promoted = true;
#ifdef SYNC
			CHECK(TOLD, told <= s_latest);
#endif
			g_latest = s_latest; g_ended = s_ended; g_floor = s_floor; row_stamp = s_stamp;
#ifndef M_NO_EPOCH
			g_present = false;
#endif
			crash()
		}
#endif
	:: deaths == 0 && crashes == 0 && promotions == 0 && (promoted || PROMOTIONS == 0) -> break
	od
#ifdef SYNC
	/* the standby goes on */
#endif
}

init {
	atomic {
		byte i = 0;
		do
		:: i < WRITERS ->
			wrote[i] = NONE; wrote_sp[i] = NONE; missed[i] = NONE;
			run writer(i);
			i++
		:: else -> break
		od;
		run worker();
#ifdef M_TWO_MINTS
		run worker();
#endif
		run anybody();
		run environment()
	}
}
