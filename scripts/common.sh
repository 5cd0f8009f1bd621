# shellcheck shell=bash
#
# What the scripts in this folder share.  Sourced, never run.
#
# After lf_find_postgres:  LF_PG_CONFIG, LF_BINDIR, LF_MAJOR
# After lf_make_workdir:   LF_DIR, a temporary folder owned by LF_USER, the
#                          user that runs the server (PostgreSQL refuses root)
# After lf_install:        LF_SERVER_CONF, lines for postgresql.conf that say
#                          where the extension is, when it is not in its place

set -euo pipefail

LF_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
LF_PG_CONFIG=
LF_BINDIR=
LF_MAJOR=
LF_DIR=
LF_USER=
LF_PORT=5432
LF_SERVER_CONF=()
lf_apt_updated=no

# What a caller's shell may have set for other servers must not reach ours.
unset PGHOST PGHOSTADDR PGPORT PGUSER PGPASSWORD PGDATABASE PGSERVICE PGOPTIONS \
	PGSSLMODE PGTZ PGDATESTYLE PGCLIENTENCODING PGAPPNAME PGDATA

lf_say() { printf '%s\n' "$@"; }

lf_die() {
	printf '%s: %s\n' "$(basename "$0")" "$*" >&2
	exit 1
}

lf_is_root() { [[ $(id -u) -eq 0 ]]; }

# lf_wait_for SECONDS COMMAND...: until the command succeeds, at most so long.
lf_wait_for() {
	local deadline=$((SECONDS + $1))
	shift
	until "$@"; do
		((SECONDS < deadline)) || return 1
		sleep 0.05
	done
}

# ---------------------------------------------------------------------------
# Packages
# ---------------------------------------------------------------------------

lf_apt_update() {
	[[ $lf_apt_updated == no ]] || return 0
	lf_say "Reading package lists (apt-get update)"
	apt-get update -qq >/dev/null || lf_die "apt-get update failed"
	lf_apt_updated=yes
}

lf_package_installed() {
	[[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

# lf_need PACKAGE...: installs those that are missing.
lf_need() {
	local package log policy=/usr/sbin/policy-rc.d installed=yes
	local missing=()

	# On another system we take what is there; what is not will be named later.
	command -v apt-get >/dev/null && command -v dpkg-query >/dev/null || return 0

	for package in "$@"; do
		lf_package_installed "$package" || missing+=("$package")
	done
	[[ ${#missing[@]} -gt 0 ]] || return 0

	lf_is_root || lf_die "these packages are missing, and only root can install them:
    sudo apt-get install --no-install-recommends ${missing[*]}"

	lf_apt_update
	lf_say "Installing ${missing[*]}"

	# Nobody asked for a database cluster, or a service, of the system's own.
	if [[ ! -e /etc/postgresql-common/createcluster.conf ]]; then
		mkdir -p /etc/postgresql-common
		echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
	fi
	if [[ -e $policy ]]; then
		policy=
	else
		printf '#!/bin/sh\nexit 101\n' >"$policy"
		chmod 755 "$policy"
	fi

	log=$(mktemp)
	DEBIAN_FRONTEND=noninteractive UCF_FORCE_CONFFOLD=1 \
		apt-get install -y -qq --no-install-recommends "${missing[@]}" \
		</dev/null >"$log" 2>&1 || installed=no
	[[ -z $policy ]] || rm -f "$policy"
	if [[ $installed == no ]]; then
		cat "$log" >&2
		rm -f "$log"
		lf_die "apt-get could not install ${missing[*]}"
	fi
	rm -f "$log"
}

# lf_need_to_build PACKAGE...: what every build takes, and those.
lf_need_to_build() {
	lf_need make gcc libc6-dev libhiredis-dev libssl-dev "$@"
}

# ---------------------------------------------------------------------------
# PostgreSQL
# ---------------------------------------------------------------------------

# The newest supported PostgreSQL installed; without one, the distribution's.
# PG_CONFIG, when set, decides; or LF_VERSION, a major version of the distribution.
lf_find_postgres() {
	local binary version newest=0 path_config

	if [[ -n ${PG_CONFIG:-} ]]; then
		LF_PG_CONFIG=$(command -v "$PG_CONFIG") || lf_die "PG_CONFIG=$PG_CONFIG is not a program"
	else
		for binary in /usr/lib/postgresql/*/bin/postgres; do
			[[ -x $binary ]] || continue
			version=${binary#/usr/lib/postgresql/}
			version=${version%%/*}
			[[ $version =~ ^1[5-8]$ ]] || continue
			((version <= newest)) || newest=$version
		done
		newest=${LF_VERSION:-$newest}
		path_config=$(command -v pg_config || true)
		if ((newest == 0)) && [[ -n $path_config && -x $("$path_config" --bindir)/postgres ]]; then
			LF_PG_CONFIG=$path_config
		else
			if ((newest == 0)); then
				command -v apt-cache >/dev/null ||
					lf_die "found no PostgreSQL: set PG_CONFIG to its pg_config"
				newest=$(lf_candidate_major)
				if [[ -z $newest ]] && lf_is_root; then
					lf_apt_update
					newest=$(lf_candidate_major)
				fi
				[[ -n $newest ]] ||
					lf_die "found no PostgreSQL, and apt-get offers none: set PG_CONFIG to its pg_config"
			fi
			lf_need "postgresql-$newest" "postgresql-server-dev-$newest"
			LF_PG_CONFIG=/usr/lib/postgresql/$newest/bin/pg_config
			[[ -x $LF_PG_CONFIG ]] ||
				lf_die "$LF_PG_CONFIG is missing: install the server's development files, or set PG_CONFIG"
		fi
	fi

	LF_BINDIR=$("$LF_PG_CONFIG" --bindir)
	LF_MAJOR=$("$LF_PG_CONFIG" --version | sed 's/^PostgreSQL \([0-9]*\).*/\1/')
	[[ $LF_MAJOR =~ ^1[5-8]$ ]] || lf_die "PostgreSQL $LF_MAJOR is not supported: 15 to 18 are"
	[[ -x $LF_BINDIR/postgres ]] || lf_die "$LF_BINDIR/postgres is missing"
	[[ -f $("$LF_PG_CONFIG" --pgxs) ]] || lf_die "the development files of PostgreSQL $LF_MAJOR are missing"
}

lf_candidate_major() {
	apt-cache policy postgresql 2>/dev/null | sed -n 's/^ *Candidate: \([0-9][0-9]*\).*/\1/p'
}

# lf_make_workdir NAME.  In /tmp whatever TMPDIR says: the path of a socket has
# room for 107 bytes, and the server's user must get there.
lf_make_workdir() {
	if lf_is_root; then
		LF_USER=postgres
		id "$LF_USER" >/dev/null 2>&1 || LF_USER=nobody
	else
		LF_USER=$(id -un)
	fi
	LF_DIR=$(mktemp -d "/tmp/$1.XXXXXX")
	! lf_is_root || chown "$LF_USER:" "$LF_DIR"
}

# Runs a command as the server's user, in a folder which that user can see.
lf_as_postgres() {
	if lf_is_root; then
		(cd "$LF_DIR" && exec runuser -u "$LF_USER" -- env HOME="$LF_DIR" "$@")
	else
		(cd "$LF_DIR" && "$@")
	fi
}

# lf_build FOLDER [COPT]: copies the source to that folder in $LF_DIR and builds it
# there: nothing of root's or of another PostgreSQL's stays behind in the working
# tree.  LF_BUILT, when set, is such a folder that another script of ours has built.
lf_build() {
	local source=$LF_DIR/$1 copt=${2:--Werror} log=$LF_DIR/build.log jobs

	if [[ -n ${LF_BUILT:-} ]]; then
		cp -a "$LF_BUILT" "$source"
		return
	fi
	mkdir "$source"
	tar -C "$LF_ROOT" --exclude=.git --exclude='*.o' --exclude='*.so' --exclude='*.bc' --exclude='redis_script_text.h*' \
		--exclude=.deps --exclude=tmp_check --exclude=./results --exclude=./output_iso \
		-cf - . | tar -C "$source" --no-same-owner -xf -
	! lf_is_root || chown -R "$LF_USER:" "$source"

	jobs=$(nproc 2>/dev/null || echo 2)
	lf_as_postgres make -s -C "$source" -j"$jobs" with_llvm=no COPT="$copt" \
		PG_CONFIG="$LF_PG_CONFIG" >"$log" 2>&1 || {
		cat "$log" >&2
		return 1
	}
}

# Installs what lf_build made: into the server's own folders where we may write
# to them; else into $LF_DIR/stage, where the server is told to look.
lf_install() {
	local log=$LF_DIR/install.log stage=$LF_DIR/stage libdir sharedir
	local options=(with_llvm=no "PG_CONFIG=$LF_PG_CONFIG")

	libdir=$("$LF_PG_CONFIG" --pkglibdir)
	sharedir=$("$LF_PG_CONFIG" --sharedir)

	LF_SERVER_CONF=()
	if [[ ! -w $libdir || ! -w $sharedir/extension ]]; then
		LF_SERVER_CONF=("dynamic_library_path = '$stage$libdir:\$libdir'")
		if ((LF_MAJOR >= 18)); then
			LF_SERVER_CONF+=("extension_control_path = '$stage$sharedir:\$system'")
		elif "$LF_BINDIR/postgres" --describe-config | grep '^extension_destdir' >/dev/null; then
			LF_SERVER_CONF+=("extension_destdir = '$stage'") # Debian's patch
		else
			lf_die "$(id -un) may not write to $libdir: run this as root"
		fi
		options+=("DESTDIR=$stage")
	fi

	make -s -C "$LF_DIR/source" "${options[@]}" install >"$log" 2>&1 || {
		cat "$log" >&2
		return 1
	}
}

# lf_start_server LINE...: a throw-away server in $LF_DIR, on a unix socket
# there and nothing else, with these lines in its postgresql.conf.
lf_start_server() {
	lf_as_postgres "$LF_BINDIR/initdb" --pgdata="$LF_DIR/data" --username=postgres \
		--auth=trust --encoding=UTF8 --no-locale --no-sync >"$LF_DIR/initdb.log" 2>&1 || {
		cat "$LF_DIR/initdb.log" >&2
		return 1
	}
	printf '%s\n' "listen_addresses = ''" "port = $LF_PORT" \
		"unix_socket_directories = '$LF_DIR'" "shared_preload_libraries = 'lease_fence'" \
		${LF_SERVER_CONF[@]+"${LF_SERVER_CONF[@]}"} "$@" >>"$LF_DIR/data/postgresql.conf"
	lf_as_postgres "$LF_BINDIR/pg_ctl" --pgdata="$LF_DIR/data" --log="$LF_DIR/server.log" \
		--wait --timeout=60 start >"$LF_DIR/pg_ctl.log" 2>&1 </dev/null || {
		cat "$LF_DIR/pg_ctl.log" >&2
		tail -n 30 "$LF_DIR/server.log" >&2 || true
		return 1
	}
}

lf_stop_server() {
	[[ -n $LF_DIR && -f $LF_DIR/data/postmaster.pid ]] || return 0
	lf_as_postgres "$LF_BINDIR/pg_ctl" --pgdata="$LF_DIR/data" --mode=immediate \
		--wait --timeout=60 stop >/dev/null 2>&1 || true
}
