# lease_fence: fencing tokens for leases, as a PostgreSQL extension

EXTENSION = lease_fence
EXTVERSION = $(shell sed -n "s/^default_version = '\(.*\)'/\1/p" $(srcdir)/lease_fence.control)
MODULE_big = lease_fence
DATA = lease_fence--1.0.sql

OBJS = \
	src/lease_fence.o \
	src/base/arguments.o \
	src/base/catalog.o \
	src/base/database.o \
	src/base/errors.o \
	src/base/notify.o \
	src/base/point.o \
	src/base/result.o \
	src/base/settings.o \
	src/base/shmem.o \
	src/base/stat.o \
	src/base/table.o \
	src/base/transaction.o \
	src/coordinator/lock_key.o \
	src/coordinator/profile.o \
	src/coordinator/profile_table.o \
	src/coordinator/redis_address.o \
	src/coordinator/redis_call.o \
	src/coordinator/redis_connection.o \
	src/coordinator/redis_greet.o \
	src/coordinator/redis_hint.o \
	src/coordinator/redis_options.o \
	src/coordinator/redis_script.o \
	src/coordinator/redis_server.o \
	src/coordinator/redis_status.o \
	src/coordinator/redis_tls.o \
	src/fence/amount.o \
	src/fence/bypass.o \
	src/fence/check.o \
	src/fence/columns.o \
	src/fence/drain.o \
	src/fence/ends.o \
	src/fence/entry.o \
	src/fence/examine.o \
	src/fence/epoch.o \
	src/fence/epoch_table.o \
	src/fence/grants.o \
	src/fence/guard.o \
	src/fence/guard_call.o \
	src/fence/guard_info.o \
	src/fence/guard_mode.o \
	src/fence/guard_unchecked.o \
	src/fence/guarded.o \
	src/fence/guarded_call.o \
	src/fence/mint.o \
	src/fence/operation.o \
	src/fence/present.o \
	src/fence/protect.o \
	src/fence/protectable.o \
	src/fence/reject.o \
	src/fence/replicated.o \
	src/fence/slots.o \
	src/fence/stamp.o \
	src/fence/statement.o \
	src/fence/statement_text.o \
	src/fence/template.o \
	src/fence/token_lock.o \
	src/fence/truncate.o \
	src/fence/value.o \
	src/lease/acquire.o \
	src/lease/adopt.o \
	src/lease/ask.o \
	src/lease/cycles.o \
	src/lease/finish.o \
	src/lease/held.o \
	src/lease/import.o \
	src/lease/manage.o \
	src/lease/pending.o \
	src/lease/prolong.o \
	src/lease/queue.o \
	src/lease/remote.o \
	src/lease/remote_events.o \
	src/lease/request.o \
	src/lease/tracked.o \
	src/lease/tracked_list.o \
	src/lease/tracked_profiles.o \
	src/lease/turn.o \
	src/lease/views.o \
	src/audit/record.o \
	src/audit/bypass_row.o \
	src/audit/observe.o \
	src/audit/writer.o \
	src/worker/utility.o \
	src/worker/watch.o \
	src/worker/launcher.o \
	src/worker/purge.o \
	src/worker/wait.o \
	src/worker/worker.o

# -Isrc: of a build in a folder of its own, what the build makes.
PG_CPPFLAGS = -I$(srcdir)/src -Isrc -DLF_VERSION='"$(EXTVERSION)"'
PG_CFLAGS = -Wall -Wextra -Werror -Wno-unused-parameter -Wno-sign-compare \
	-Wno-missing-field-initializers -Wno-cast-function-type -std=gnu99

REGRESS = $(patsubst sql/%.sql,%,$(wildcard sql/*.sql))
REGRESS_OPTS = --inputdir=$(srcdir) --load-extension=lease_fence
ISOLATION = $(patsubst tests/isolation/specs/%.spec,%,$(wildcard tests/isolation/specs/*.spec))
ISOLATION_OPTS = --inputdir=$(srcdir)/tests/isolation --load-extension=lease_fence

PG_CONFIG ?= pg_config

# TLS to Redis, where hiredis was built with it: 1.0 and later.
SHLIB_LINK += -lhiredis
LF_TLS_HEADERS := $(shell printf '\043include <%s>\n' \
	stddef.h hiredis/hiredis.h hiredis/hiredis_ssl.h openssl/ssl.h | \
	$$($(PG_CONFIG) --cc) $(CPPFLAGS) -E -x c - >/dev/null 2>&1 && echo yes)
ifeq ($(LF_TLS_HEADERS),yes)
PG_CPPFLAGS += -DLF_TLS
SHLIB_LINK += -lhiredis_ssl -lssl -lcrypto
endif

# The scripts that Redis runs, as C: a first look of some, lock.lua, and their own.
LUA_SCRIPTS = acquire renew check release
LUA_FILES = $(wildcard $(srcdir)/src/lua/*.lua)
LUA_HEADER = src/coordinator/redis_script_text.h
EXTRA_CLEAN = $(LUA_HEADER)

PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

# PGXS knows no dependencies on headers unless the server was built with them.
$(OBJS): $(filter-out %/redis_script_text.h,$(wildcard $(srcdir)/src/*/*.h))

src/coordinator/redis_script.o src/coordinator/redis_script.bc: $(LUA_HEADER)

$(LUA_HEADER): $(LUA_FILES)
	@mkdir -p $(@D)
	(for name in $(LUA_SCRIPTS); do \
		echo "static const char $${name}_lua[] =" && \
		first=$(srcdir)/src/lua/$${name}_first.lua && { [ -e "$$first" ] || first=; } && \
		cat $$first $(srcdir)/src/lua/lock.lua $(srcdir)/src/lua/$$name.lua | \
			sed -e 's/[\\"]/\\&/g' -e 's/^/"/' -e 's/$$/\\n"/' && \
		echo ";" || exit 1; \
	done) >$@.new && mv $@.new $@
