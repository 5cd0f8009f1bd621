/*
 * redis_options.c
 *		Options of servers of lease_fence_redis and of their user mappings.
 *
 * Runs in backends, when somebody defines a server or a user mapping, and in the
 * worker, which reads them.  What the validator let through is looked at again
 * there: it may have been let through by a library with TLS, or by none.
 */
#include "postgres.h"

#include <limits.h>
#include <sys/un.h>

#include "access/reloptions.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "catalog/dependency.h"
#include "catalog/pg_foreign_data_wrapper.h"
#include "catalog/pg_foreign_server.h"
#include "catalog/pg_user_mapping.h"
#include "common/string.h"
#include "coordinator/redis_options.h"
#include "fmgr.h"
#include "foreign/foreign.h"
#include "nodes/parsenodes.h"
#include "utils/builtins.h"
#include "utils/syscache.h"

PG_FUNCTION_INFO_V1(lf_redis_validator);

#define TIMEOUT_MIN 10			/* ms */
#define TIMEOUT_MAX 60000

/* Takes a value in; NULL, or what would be allowed instead. */
typedef const char *(*TakeOption) (const char *value, LfRedisOptions *options);

typedef struct Option
{
	const char *name;
	Oid			catalog;
	bool		secret;			/* no message shows its value */
	TakeOption	take;
} Option;

typedef struct Refusal
{
	int			sqlstate;
	char	   *message;
	const char *hint;
} Refusal;

/* ---------------------------------------------------------------------------
 * Values
 * ---------------------------------------------------------------------------
 */

static bool
take_text(const char *value, char *field, Size size)
{
	if (value[0] == '\0' || strlen(value) >= size)
		return false;
	memset(field, 0, size);
	memcpy(field, value, strlen(value));
	return true;
}

/* Digits only: "6379.5" and " 6379" are slips. */
static bool
take_number(const char *value, int min, int max, int *field)
{
	char	   *end;

	if (value[0] == '\0' || strspn(value, "0123456789") != strlen(value))
		return false;
	errno = 0;
	*field = strtoint(value, &end, 10);
	return errno == 0 && *field >= min && *field <= max;
}

static const char *
take_timeout(const char *value, int *field)
{
	if (!parse_int(value, field, GUC_UNIT_MS, NULL) ||
		*field < TIMEOUT_MIN || *field > TIMEOUT_MAX)
		return "It is a time from 10ms to 60s, such as \"500ms\" or \"2s\".";
	return NULL;
}

static const char *
take_bool(const char *value, bool *field)
{
	return parse_bool(value, field) ? NULL : "It is \"on\" or \"off\".";
}

/* One colon is a port's, and a slash a socket's or a URL's. */
static const char *
take_host(const char *value, LfRedisOptions *options)
{
	const char *colon = strchr(value, ':');

	if (strspn(value, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:%") != strlen(value) ||
		(colon != NULL && strchr(colon + 1, ':') == NULL) ||
		!take_text(value, options->host, sizeof(options->host)))
		return "It is a name or an address, without port, scheme or brackets, of 1 to 255 bytes.";
	return NULL;
}

static const char *
take_port(const char *value, LfRedisOptions *options)
{
	return take_number(value, 1, 65535, &options->port) ? NULL : "It is 1 to 65535.";
}

static const char *
take_socket(const char *value, LfRedisOptions *options)
{
	struct sockaddr_un address;

	StaticAssertStmt(sizeof(address.sun_path) <= sizeof(options->socket), "a path fits");
	if (value[0] != '/' || !take_text(value, options->socket, sizeof(address.sun_path)))
		return psprintf("It is an absolute path of at most %zu bytes.", sizeof(address.sun_path) - 1);
	return NULL;
}

static const char *
take_db(const char *value, LfRedisOptions *options)
{
	return take_number(value, 0, INT_MAX, &options->db) ? NULL :
		"It is the number of a database: 0 or more.";
}

static const char *
take_connect_timeout(const char *value, LfRedisOptions *options)
{
	return take_timeout(value, &options->connect_timeout);
}

static const char *
take_command_timeout(const char *value, LfRedisOptions *options)
{
	return take_timeout(value, &options->command_timeout);
}

static const char *
take_tls(const char *value, LfRedisOptions *options)
{
	return take_bool(value, &options->tls);
}

static const char *
take_ca_file(const char *value, LfRedisOptions *options)
{
	if (value[0] != '/' || !take_text(value, options->ca_file, sizeof(options->ca_file)))
		return "It is the absolute path of a file of certificates.";
	return NULL;
}

static const char *
take_set_events(const char *value, LfRedisOptions *options)
{
	return take_bool(value, &options->set_events);
}

static const char *
take_username(const char *value, LfRedisOptions *options)
{
	return take_text(value, options->username, sizeof(options->username)) ? NULL :
		"It has 1 to 255 bytes.";
}

static const char *
take_password(const char *value, LfRedisOptions *options)
{
	return take_text(value, options->password, sizeof(options->password)) ? NULL :
		"It has 1 to 511 bytes.";
}

static const Option option_table[] = {
	{"host", ForeignServerRelationId, false, take_host},
	{"port", ForeignServerRelationId, false, take_port},
	{"socket", ForeignServerRelationId, false, take_socket},
	{"db", ForeignServerRelationId, false, take_db},
	{"connect_timeout", ForeignServerRelationId, false, take_connect_timeout},
	{"command_timeout", ForeignServerRelationId, false, take_command_timeout},
	{"tls", ForeignServerRelationId, false, take_tls},
	{"ca_file", ForeignServerRelationId, false, take_ca_file},
	{"set_events", ForeignServerRelationId, false, take_set_events},
	{"username", UserMappingRelationId, false, take_username},
	{"password", UserMappingRelationId, true, take_password},
};

static void
set_defaults(LfRedisOptions *options)
{
	memset(options, 0, sizeof(*options));
	strlcpy(options->host, "127.0.0.1", sizeof(options->host));
	options->port = 6379;
	options->connect_timeout = 2000;
	options->command_timeout = 1000;
}

/* ---------------------------------------------------------------------------
 * Lists of options
 * ---------------------------------------------------------------------------
 */

static bool
refuse(Refusal *refusal, int sqlstate, char *message, const char *hint)
{
	refusal->sqlstate = sqlstate;
	refusal->message = message;
	refusal->hint = hint;
	return false;
}

static bool
is_given(List *list, const char *name)
{
	ListCell   *cell;

	foreach(cell, list)
	{
		if (strcmp(((DefElem *) lfirst(cell))->defname, name) == 0)
			return true;
	}
	return false;
}

static char *
valid_options(Oid catalog)
{
	StringInfoData names;

	initStringInfo(&names);
	for (int i = 0; i < lengthof(option_table); i++)
	{
		if (option_table[i].catalog == catalog)
			appendStringInfo(&names, "%s%s", names.len > 0 ? ", " : "", option_table[i].name);
	}
	return names.data;
}

static bool
refuse_name(Refusal *refusal, const char *name, Oid catalog)
{
	char	   *valid = valid_options(catalog);
	char	   *hint = "There are no valid options in this context.";

	if (valid[0] != '\0')
		hint = psprintf("Valid options in this context are: %s.", valid);
	return refuse(refusal, ERRCODE_FDW_INVALID_OPTION_NAME,
				  psprintf("invalid option \"%s\"", name), hint);
}

static bool
take_option(DefElem *given, Oid catalog, LfRedisOptions *options, Refusal *refusal)
{
	const char *value = given->arg != NULL ? strVal(given->arg) : "";

	for (int i = 0; i < lengthof(option_table); i++)
	{
		const Option *option = &option_table[i];
		const char *allowed;

		if (option->catalog != catalog || strcmp(option->name, given->defname) != 0)
			continue;
		allowed = option->take(value, options);
		if (allowed == NULL)
			return true;
		return refuse(refusal, ERRCODE_INVALID_PARAMETER_VALUE,
					  option->secret ? psprintf("the value of option \"%s\" is not allowed", option->name) :
					  psprintf("option \"%s\" is not allowed: \"%s\"", option->name, value),
					  allowed);
	}
	return refuse_name(refusal, given->defname, catalog);
}

static bool
check_tls(const LfRedisOptions *options, Refusal *refusal)
{
#ifndef LF_TLS
	if (options->tls)
		return refuse(refusal, ERRCODE_FEATURE_NOT_SUPPORTED,
					  "option \"tls\" is not supported by this build of lease_fence",
					  "It takes a build with hiredis 1.0 or later and its library hiredis_ssl.");
#endif
	return true;
}

/* What single options cannot know. */
static bool
check_together(List *list, const LfRedisOptions *options, Refusal *refusal)
{
	if (options->socket[0] != '\0' && (is_given(list, "host") || is_given(list, "port")))
		return refuse(refusal, ERRCODE_INVALID_PARAMETER_VALUE,
					  psprintf("option \"socket\" excludes option \"%s\"",
							   is_given(list, "host") ? "host" : "port"),
					  "A server is reached by its socket, or by host and port.");
	if (options->socket[0] != '\0' && options->tls)
		return refuse(refusal, ERRCODE_INVALID_PARAMETER_VALUE,
					  "option \"socket\" excludes option \"tls\"",
					  "TLS is for servers that are reached by host and port.");
	if (options->ca_file[0] != '\0' && !options->tls)
		return refuse(refusal, ERRCODE_INVALID_PARAMETER_VALUE,
					  "option \"ca_file\" needs option \"tls\"", "Set tls to \"on\", too.");
	if (options->username[0] != '\0' && options->password[0] == '\0')
		return refuse(refusal, ERRCODE_INVALID_PARAMETER_VALUE,
					  "option \"username\" needs option \"password\"",
					  "A password alone is that of Redis' user \"default\".");
	return check_tls(options, refusal);
}

static bool
take_options(List *list, Oid catalog, LfRedisOptions *options, Refusal *refusal)
{
	ListCell   *cell;

	foreach(cell, list)
	{
		if (!take_option(lfirst(cell), catalog, options, refusal))
			return false;
	}
	return check_together(list, options, refusal);
}

Datum
lf_redis_validator(PG_FUNCTION_ARGS)
{
	List	   *list = untransformRelOptions(PG_GETARG_DATUM(0));
	LfRedisOptions options;
	Refusal		refusal;

	set_defaults(&options);
	if (!take_options(list, PG_GETARG_OID(1), &options, &refusal))
		ereport(ERROR,
				(errcode(refusal.sqlstate),
				 errmsg_internal("%s", refusal.message),
				 errhint("%s", refusal.hint)));
	PG_RETURN_VOID();
}

/* ---------------------------------------------------------------------------
 * Servers
 * ---------------------------------------------------------------------------
 */

/* Ours, and not one that somebody else made under our name. */
static bool
wrapper_is_ours(Oid oid)
{
	ForeignDataWrapper *wrapper = GetForeignDataWrapperExtended(oid, FDW_MISSING_OK);
	const LfCatalog *catalog = lf_catalog();

	return wrapper != NULL && catalog != NULL &&
		strcmp(wrapper->fdwname, LF_REDIS_WRAPPER) == 0 &&
		getExtensionOfObject(ForeignDataWrapperRelationId, oid) == catalog->extension;
}

bool
lf_redis_options_own(Oid server)
{
	ForeignServer *found = GetForeignServerExtended(server, FSV_MISSING_OK);

	return found != NULL && wrapper_is_ours(found->fdwid);
}

/* GetUserMapping() would raise where there is none. */
static List *
mapping_options(const ForeignServer *server)
{
	HeapTuple	tuple;
	Datum		options;
	bool		isnull;
	List	   *list;

	tuple = SearchSysCache2(USERMAPPINGUSERSERVER, ObjectIdGetDatum(server->owner),
							ObjectIdGetDatum(server->serverid));
	if (!HeapTupleIsValid(tuple))
		tuple = SearchSysCache2(USERMAPPINGUSERSERVER, ObjectIdGetDatum(InvalidOid),
								ObjectIdGetDatum(server->serverid));
	if (!HeapTupleIsValid(tuple))
		return NIL;
	options = SysCacheGetAttr(USERMAPPINGUSERSERVER, tuple,
							  Anum_pg_user_mapping_umoptions, &isnull);
	list = isnull ? NIL : untransformRelOptions(options);
	ReleaseSysCache(tuple);
	return list;
}

bool
lf_redis_options_read(Oid server, LfRedisOptions *options)
{
	ForeignServer *found = GetForeignServerExtended(server, FSV_MISSING_OK);
	Refusal		refusal;

	set_defaults(options);
	if (found == NULL || !wrapper_is_ours(found->fdwid))
		return false;
	strlcpy(options->name, found->servername, sizeof(options->name));
	if (take_options(found->options, ForeignServerRelationId, options, &refusal) &&
		take_options(mapping_options(found), UserMappingRelationId, options, &refusal))
		return true;
	ereport(WARNING,
			(errcode(refusal.sqlstate),
			 errmsg("server \"%s\" cannot be used: %s", found->servername, refusal.message),
			 errhint("%s", refusal.hint)));
	return false;
}
