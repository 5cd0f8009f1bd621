/*
 * redis.pml
 *		The Redis side: who is granted what, on which evidence.
 *
 * One lock in Redis, one resource, two clients, the worker with one connection.
 * An adopting client takes the lock in its own way and asks the worker to adopt
 * it; an acquiring one has the worker take it.  Each reads the row after it was
 * granted, writes what it read and one, and commits.  The fence itself (fence.pml)
 * is short here: a write is let in under the current token alone, and a mint waits
 * for the writers under the old one.
 *
 * No time is measured: a lock runs out, or is forgotten, at any moment, and a
 * grant's deadline passes at any moment.  README.md says what each step is.
 */

#ifndef CLIENT_0
#define CLIENT_0 ADOPTS
#endif
#ifndef CLIENT_1
#define CLIENT_1 ADOPTS
#endif
#ifndef ROUNDS
#define ROUNDS 2				/* grants that each client asks for */
#endif
#ifndef LOCKS
#define LOCKS 3					/* times that the lock is taken */
#endif
#ifndef BREAKS
#define BREAKS 1				/* of the connection */
#endif
#ifndef DEATHS
#define DEATHS 0				/* of the worker */
#endif
#ifndef RUNS_OUT
#define RUNS_OUT 2				/* times that Redis forgets the lock */
#endif

#define ADOPTS		1
#define ACQUIRES	2

/* Every check has a name: it stands in what spin says of a violation. */
hidden byte I2 = 0;				/* no write is committed under an older token */
hidden byte UPDATE = 0;			/* I8: who reads after the grant loses no update */
hidden byte RELEASE_OF_OWN = 0;	/* the worker releases no lock but the one it means */
hidden byte ORDER = 0;			/* grants are minted in the order of the lock's */
hidden byte NEWEST = 0;			/* nobody is granted what the newest answer denies */
hidden byte DRAINED = 0;		/* who waited for a drain had the lock after it */
hidden byte PROOF = 0;			/* only an answer ends a grant whose lock is there */

#define CHECK(name, c)	assert((c) || name)

/* LfLockCall; renewing, checking and verifying are all a look here */
#define TAKE	1
#define LOOK	2
#define RELEASE	3

/* LfLockState */
#define HELD	1
#define OTHER	2
#define ABSENT	3

/* LfRemoteState */
#define IDLE	0
#define ASKED	1
#define BUSY	2
#define GRANTED	3
#define LOST	4

/* ---- Redis ---- */

byte r_value = 0;				/* the lock's; 0: nobody has it */
byte r_lock = 0;				/* which time it was taken, in order */
byte r_by = 0;					/* for which acquisition */
byte taken = 0;

/* Calls and answers, in order.  who: a client, the tracked lease or a release. */
#define TRACKED		2
#define ORPHAN		3
/* call, value, acquisition, who, question; and state, lock */
chan calls = [2] of { byte, byte, byte, byte, byte };
chan answers = [2] of { byte, byte, byte, byte, byte, byte, byte };
chan late = [1] of { byte, byte, byte };	/* stuck in a broken connection */
#ifdef M_TWO_CONNECTIONS
chan calls_2 = [1] of { byte, byte, byte, byte, byte };
chan answers_2 = [1] of { byte, byte, byte, byte, byte, byte, byte };
#endif

/* ---- PostgreSQL ---- */

byte e_token = 0;				/* the entry */
bool e_over = true;
bool e_draining = false;
bool e_own = false;				/* its lock is of the worker's taking */
byte e_value = 0;
byte e_lock = 0;

/* requests: LfPending and LfRemote */
byte kind[2];					/* 0: none */
byte state[2];
byte question[2];				/* under way; 0: none */
byte acquisition[2];
byte lock[2];					/* as the answer showed it */
bool confirming[2];
bool confirmed[2];
byte answer[2];					/* to the client: 0 none yet, 1 refused, else token + 1 */
byte numbers[2];				/* of questions, in the connection; by their bits */
byte last_acquisition = 2;		/* the first two are the clients' own */

#define NOBODY 2
byte reserved = NOBODY;			/* whose request has the resource */
bool waited = false;			/* drain_waited */
bool begun = false;
bool committed = false;

bool t_tracked = false;			/* the entry's lease is tracked */
bool t_asked = false;
byte to_release = 0;			/* acquisitions, by their bits */
byte asked_release = 0;

/* clients */
byte token[2];
bool writes[2];					/* an open transaction has written */
bool reads[2];					/* has read the row, for what it is to write */

/* what only the checks look at */
byte last_token = 0;			/* in lease_fence.grants */
bool denied[2];					/* a newer answer than its own denies its grant */
byte order = 0;					/* the last lock that a grant was minted for */
bool after_drain[2];			/* has had the lock since the last writer ended */
bool stale[2];					/* somebody committed since it has read */

byte breaks = BREAKS;
byte deaths = DEATHS;
byte runs_out = RUNS_OUT;

#ifdef EQUAL_BYTES
#define BYTES(c) 1
#else
#define BYTES(c) (1 + c)
#endif

/* The value is as the acquisition, which is unique: the nonce. */
#ifdef M_VALUE_NOT_UNIQUE
#define OWN_VALUE(acq) 9		/* the session's identity */
#else
#define OWN_VALUE(acq) acq
#endif
#define VALUE(c) (acquisition[c] <= 2 -> BYTES(c) : OWN_VALUE(acquisition[c]))

#ifdef M_NO_REVERIFY
#define NOT_VERIFIED || true
#else
#define NOT_VERIFIED
#endif

#define BIT(n) (1 << (n))
#define BLOCKED ((writes[0] && token[0] == e_token) || (writes[1] && token[1] == e_token))

/* ---- Redis ---- */

inline carry_out(call, v, acq, result) {
	if
	:: call == TAKE ->
		if
		:: r_value == 0 && taken < LOCKS ->
			taken++; r_value = v; r_lock = taken; r_by = acq; result = HELD
		:: r_value == 0 && taken == LOCKS -> result = ABSENT	/* the model's limit */
		:: r_value == v -> r_by = acq; result = HELD
		:: r_value != 0 && r_value != v -> result = OTHER
		fi
	:: else ->
		result = (r_value == v -> HELD : (r_value == 0 -> ABSENT : OTHER));
		if
		:: call == RELEASE && result == HELD ->
			CHECK(RELEASE_OF_OWN, r_by == acq);
			r_value = 0; r_lock = 0; r_by = 0
		:: else
		fi
	fi
}

proctype redis()
{
	byte call, v, acq, who, q, result;

end_wait:
	do
	:: atomic {
			nempty(calls) && nfull(answers) ->
			calls ? call, v, acq, who, q;
			carry_out(call, v, acq, result);
			if :: waited && !BLOCKED && who == reserved && result == HELD -> after_drain[who] = true :: else fi;
			answers ! call, v, acq, who, q, result, r_lock;
			call = 0; v = 0; acq = 0; who = 0; q = 0; result = 0
		}
#ifdef M_TWO_CONNECTIONS
	:: atomic {
			nempty(calls_2) && nfull(answers_2) ->
			calls_2 ? call, v, acq, who, q;
			carry_out(call, v, acq, result);
			if :: waited && !BLOCKED && who == reserved && result == HELD -> after_drain[who] = true :: else fi;
			answers_2 ! call, v, acq, who, q, result, r_lock;
			call = 0; v = 0; acq = 0; who = 0; q = 0; result = 0
		}
#endif
	:: atomic {					/* what was stuck, whose answer nobody hears */
			late ? call, v, acq ->
			carry_out(call, v, acq, result);
			call = 0; v = 0; acq = 0; result = 0
		}
	od
}

/* ---- clients ---- */

/* As its library does: if it is there still, by its value. */
inline unlock(c) {
	if
	:: r_value == BYTES(c) -> r_value = 0; r_lock = 0; r_by = 0
	:: else
	fi
}

proctype client(byte c; byte how)
{
	byte rounds = ROUNDS;
	bool locked = false;

end_idle:
	do
	:: rounds > 0 && !(how == ADOPTS && !locked) ->
		rounds--;
		if
		/* lf_request_submit; the worker drops an earlier one before it looks at this */
		:: atomic { state[c] == IDLE && reserved != c -> kind[c] = how; answer[c] = 0 }
#ifdef KNOWN_TOKENS
		/* known_token: extend_known, which looks, and mints nothing */
		:: atomic { how == ADOPTS && token[c] != 0 && token[c] == e_token && !e_over ->
			answer[c] = token[c] + 1 }
#endif
#ifdef M_TOKEN_REUSED
		:: atomic { how == ADOPTS && e_value == BYTES(c) && r_value == BYTES(c) && !e_over ->
			answer[c] = e_token + 1 }
#endif
		fi;
		if
		:: atomic { answer[c] != 0 -> kind[c] = 0 }
		:: atomic { answer[c] == 0 -> kind[c] = 0; answer[c] = 1 }	/* withdrawn */
		fi;
		if
		:: atomic { answer[c] <= 1 -> answer[c] = 0 }
		:: atomic { answer[c] > 1 ->
				token[c] = answer[c] - 1; answer[c] = 0;
				reads[c] = true			/* after the grant */
			};
			if
			:: atomic { how == ADOPTS && locked -> unlock(c); locked = false }	/* before COMMIT */
			:: true
			fi;
			if
			/* lf_check_resource, and the row's own lock */
			:: atomic { token[c] == e_token && !e_over && !e_draining && !writes[1 - c] ->
					writes[c] = true };
				atomic {
					CHECK(I2, token[c] >= last_token);
					CHECK(UPDATE, !stale[c]);
					if :: reads[1 - c] -> stale[1 - c] = true :: else fi;
					writes[c] = false; reads[c] = false
				}
			:: true
			fi;
			atomic {
				reads[c] = false; stale[c] = false;
				if
				:: how == ACQUIRES && token[c] == e_token && !e_over -> e_over = true
				:: true
				fi
			}
		fi
	:: atomic { how == ADOPTS && !locked && rounds > 0 && r_value == 0 && taken < LOCKS ->
		taken++; r_value = BYTES(c); r_lock = taken; r_by = 1 + c; locked = true }
	:: atomic { how == ADOPTS && locked -> unlock(c); locked = false }
	od
}

/* ---- the worker ---- */

#define LIVE (e_token != 0 && !e_over)

/* Sends call, v, acq, who, q: the worker's variables, which are 0 between steps. */
inline forget_variables() {
	call = 0; v = 0; acq = 0; who = 0; q = 0; result = 0; shown = 0
}

inline send() {
#ifdef M_TWO_CONNECTIONS
	if
	:: nfull(calls) -> calls ! call, v, acq, who, q
	:: nfull(calls_2) -> calls_2 ! call, v, acq, who, q
	fi;
#else
	calls ! call, v, acq, who, q;
#endif
	forget_variables()
}
#ifdef M_TWO_CONNECTIONS
#define CAN_SEND (nfull(calls) || nfull(calls_2))
#else
#define CAN_SEND nfull(calls)
#endif

/* remote.c: ask */
inline ask(what) {
	q = 1;						/* a number that no answer under way has */
	do
	:: numbers[c] & BIT(q) -> q++
	:: else -> break
	od;
	numbers[c] = numbers[c] | BIT(q);
	question[c] = q;
	call = what; v = VALUE(c); acq = acquisition[c]; who = c;
	send()
}

/* lf_remote_give_back */
inline give_back(i) {
	if
	:: acquisition[i] > 2 && (state[i] == GRANTED || state[i] == LOST) ->
		to_release = to_release | BIT(acquisition[i])
	:: else
	fi;
	state[i] = IDLE; question[i] = 0; confirming[i] = false; confirmed[i] = false;
	lock[i] = 0; acquisition[i] = 0; denied[i] = false; after_drain[i] = false
}

/* lf_pending_abandon */
inline abandon(i) {
	if
	:: reserved == i ->
		if :: begun -> e_draining = false :: else fi;
		reserved = NOBODY; begun = false; waited = false
	:: else
	fi;
	give_back(i)
}

inline refuse(i) {
	abandon(i);
	if :: kind[i] != 0 -> kind[i] = 0; answer[i] = 1 :: else fi
}

/* remote.c: contradicts.  A lock that a release has found is nobody's any more. */
#ifdef M_RELEASE_TELLS_ITS_OWN
#define RELEASED(i) (result == HELD && call == RELEASE && v == VALUE(i))
#else
#define RELEASED(i) (result == HELD && call == RELEASE)
#endif

inline see(i) {
	if
	:: state[i] == GRANTED && !(who == i && question[i] == q) &&
	   (RELEASED(i) || (result == HELD && call != RELEASE && v != VALUE(i)) ||
		(result == OTHER && v == VALUE(i)) || result == ABSENT) ->
		state[i] = LOST
	:: else
	fi
}

/* remote.c: answered */
inline take_answer(i) {
	question[i] = 0;
	if
	:: state[i] == ASKED && result == HELD -> state[i] = GRANTED; lock[i] = shown
	:: state[i] == ASKED && result != HELD && call == TAKE -> state[i] = BUSY
	:: state[i] == ASKED && result != HELD && call != TAKE -> refuse(i)
	:: state[i] == GRANTED ->
		if
		:: result == HELD ->
			lock[i] = shown;
			if :: confirming[i] -> confirmed[i] = true :: else fi
		:: else -> state[i] = LOST
		fi;
		confirming[i] = false
	:: else -> confirming[i] = false
	fi
}

/* No answer: LF_LOCK_UNKNOWN. */
inline take_unknown(i) {
	if
	:: question[i] != 0 ->
		question[i] = 0;
		if
		:: state[i] == ASKED ->
			if :: acquisition[i] > 2 -> to_release = to_release | BIT(acquisition[i]) :: else fi;
			refuse(i)
		:: state[i] == GRANTED && confirming[i] -> refuse(i)
		:: else
		fi
	:: else
	fi
}

/* remote.c: answer_nobody */
inline answer_nobody(granted) {
	if
	:: who < 2 ->
		if
		:: call == TAKE && granted && question[who] != q -> to_release = to_release | BIT(acq)
		:: else
		fi
	:: else
	fi
}

/* The connection is closed; a call in it may still be carried out, later. */
inline break_connection() {
	do
	:: nempty(answers) ->
		answers ? call, v, acq, who, q, result, shown;
		answer_nobody(true);
	:: empty(answers) && nempty(calls) ->
		calls ? call, v, acq, who, q;
		answer_nobody(true);
		if
		:: nfull(late) -> late ! call, v, acq
		:: true
		fi
	:: empty(answers) && empty(calls) -> break
	od;
	numbers[0] = 0; numbers[1] = 0;
	take_unknown(0);
	take_unknown(1);
	t_asked = false;
	to_release = to_release | asked_release;
	asked_release = 0
}

/* stop_tracking */
inline untrack() {
	if
	:: t_tracked && e_own -> to_release = to_release | BIT(e_value)
	:: else
	fi;
	t_tracked = false; t_asked = false
}

/* What the answer shows of Redis, whatever the code makes of it. */
inline deny(i) {
	if
	:: state[i] == GRANTED && !(who == i && question[i] == q) &&
	   ((result == HELD && shown != lock[i]) || result == ABSENT ||
		(result == OTHER && v == VALUE(i))) ->
		denied[i] = true
	:: else
	fi
}

inline receive(from) {
	from ? call, v, acq, who, q, result, shown;
	if :: who < 2 -> numbers[who] = numbers[who] & ~BIT(q) :: else fi;
	deny(0);
	deny(1);
#ifndef M_NO_SEE
	see(0);
	see(1);
#endif
	if
	:: who == 0 && question[0] == q -> take_answer(0)
	:: who == 1 && question[1] == q -> take_answer(1)
	:: (who == 0 && question[0] != q) || (who == 1 && question[1] != q) ->
		answer_nobody(result == HELD)
	:: who == TRACKED ->			/* lf_tracked_take_answer */
		if
		:: t_tracked && q == e_token ->
			t_asked = false;
			if
			:: result != HELD && !e_over ->
				CHECK(PROOF, r_lock != e_lock);
				e_over = true
			:: else
			fi
		:: else
		fi
	:: who == ORPHAN -> asked_release = asked_release & ~BIT(acq)
	fi;
	forget_variables()
}

#define MAY_TAKE(c) (kind[c] == ADOPTS || !LIVE)

proctype worker()
{
	byte call, v, acq, who, q, result, shown;
	byte c = 0;

end_pass:
	do
	:: atomic { nempty(answers) -> receive(answers) }
#ifdef M_TWO_CONNECTIONS
	:: atomic { nempty(answers_2) -> receive(answers_2) }
#endif

	:: atomic {					/* one request's turn: lf_turn_advance */
			if
			:: kind[0] != 0 || state[0] != IDLE -> c = 0
			:: kind[1] != 0 || state[1] != IDLE -> c = 1
			fi;
			if
			/* lf_pending_drop_withdrawn */
			:: kind[c] == 0 && state[c] != IDLE && !(reserved == c && committed) -> abandon(c)

			/* reserve_remotely, lf_remote_take */
			:: kind[c] != 0 && (state[c] == IDLE || state[c] == BUSY) && reserved == NOBODY &&
			   MAY_TAKE(c) && CAN_SEND &&
			   (kind[c] == ADOPTS || state[c] == BUSY || last_acquisition < 7) ->
				if
				:: state[c] == IDLE && kind[c] == ADOPTS -> acquisition[c] = 1 + c
				:: state[c] == IDLE && kind[c] == ACQUIRES ->
					last_acquisition++; acquisition[c] = last_acquisition
				:: else
				fi;
				state[c] = ASKED;
				if :: kind[c] == ADOPTS -> ask(LOOK) :: else -> ask(TAKE) fi
			/* is_stale: before its turn came; who acquires takes it anew */
			:: kind[c] != 0 && state[c] == LOST && reserved != c ->
				if
				:: kind[c] == ADOPTS -> refuse(c)
				:: else -> give_back(c)
				fi
			:: kind[c] != 0 && state[c] == GRANTED && reserved == NOBODY && MAY_TAKE(c) ->
				reserved = c

			/* lf_remote_keep */
			:: kind[c] != 0 && reserved == c && !committed && state[c] == LOST ->
				if
				:: kind[c] == ADOPTS -> refuse(c)
				:: else -> abandon(c)	/* begins anew */
				fi
#ifdef KEEPS
			:: kind[c] != 0 && reserved == c && !committed && state[c] == GRANTED &&
			   question[c] == 0 && CAN_SEND ->
				ask(LOOK)
#endif

			/* step 1 */
			:: kind[c] != 0 && reserved == c && !begun && state[c] == GRANTED ->
				begun = true; e_over = true; e_draining = true

			/* step 2, lf_remote_confirm */
			:: kind[c] != 0 && reserved == c && begun && !committed && BLOCKED && !waited ->
				waited = true
#ifndef M_NO_REVERIFY
			:: kind[c] != 0 && reserved == c && begun && !committed && !BLOCKED &&
			   state[c] == GRANTED && waited && !confirmed[c] && !confirming[c] && CAN_SEND ->
				confirming[c] = true; ask(LOOK)
#endif

			/* step 3 */
			:: kind[c] != 0 && reserved == c && begun && !committed && !BLOCKED &&
			   state[c] == GRANTED && (!waited || confirmed[c] NOT_VERIFIED) ->
				CHECK(DRAINED, !waited || after_drain[c]);
#ifndef EQUAL_BYTES
				CHECK(ORDER, lock[c] >= order);
				CHECK(NEWEST, !denied[c]);
#endif
				order = lock[c];
				last_token++;
				committed = true

			/* step 4: publish, lf_remote_hand_over */
			:: reserved == c && committed ->
				untrack();
				e_token = last_token;
				e_draining = false;
				e_over = (state[c] != GRANTED || kind[c] == 0);
				e_own = acquisition[c] > 2;
				e_value = (e_own -> acquisition[c] : BYTES(c));
				e_lock = lock[c];
				t_tracked = !e_over;
				if
				:: !e_over -> acquisition[c] = 0; answer[c] = e_token + 1
				:: e_over && kind[c] != 0 -> answer[c] = 1
				:: else
				fi;
				kind[c] = 0;
				reserved = NOBODY; begun = false; committed = false; waited = false;
				give_back(c)

			:: else				/* nothing is to be had now */
			fi;
			c = 0
		}

	/* lf_tracked_pass, by the clock or by a hint: late, doubled or none */
	:: atomic { t_tracked && !t_asked && !e_over && CAN_SEND ->
			t_asked = true;
			call = LOOK; who = TRACKED; q = e_token;
			v = (e_own -> OWN_VALUE(e_value) : e_value);
			send()
		}
	/* lf_tracked_release_ended */
	:: atomic { t_tracked && e_over && !e_draining -> untrack() }
	:: atomic { to_release != 0 && CAN_SEND ->
			acq = 3;
			do
			:: to_release & BIT(acq) -> break
			:: else -> acq++
			od;
			to_release = to_release & ~BIT(acq);
			asked_release = asked_release | BIT(acq);
			call = RELEASE; v = OWN_VALUE(acq); who = ORPHAN;
			send()
		}
	/* a release is tried until the lock has run out by itself */
	:: atomic { to_release != 0 -> to_release = 0 }

	:: atomic { breaks > 0 && (nempty(calls) || nempty(answers)) ->
			breaks--;
			break_connection();
			forget_variables()
		}
	:: atomic { deaths > 0 ->		/* and the next one's beginning */
			deaths--;
			break_connection();
			forget_variables();
			if						/* lf_mint_recover, settle_entry */
			:: committed ->
				untrack();
				e_token = last_token; e_over = true; e_draining = false; committed = false
			:: else -> e_draining = false
			fi;
			refuse(0);				/* lf_remote_undo: what it may have taken */
			refuse(1);
			t_tracked = LIVE
		}
#ifdef M_HINT_IS_PROOF
	:: atomic { LIVE && runs_out < RUNS_OUT ->
			CHECK(PROOF, r_lock != e_lock);
			e_over = true
		}
#endif
	od
}

/* ---- everything else ---- */

proctype environment()
{
end_wait:
	do
	:: atomic { r_value != 0 && runs_out > 0 ->	/* runs out, FLUSHALL, failover */
			runs_out--; r_value = 0; r_lock = 0; r_by = 0 }
	:: atomic { LIVE -> e_over = true }			/* its deadline */
	od
}

init {
	atomic {
		run client(0, CLIENT_0);
		run client(1, CLIENT_1);
		run redis();
		run worker();
		run environment()
	}
}
