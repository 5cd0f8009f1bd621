/*
 * present.c
 *		The tokens under which a transaction writes.
 *
 * Runs in backends.
 *
 * What must end well: ROLLBACK TO SAVEPOINT (undoes what was presented since),
 * a pooler that gives this backend to the next client (nothing of a transaction
 * outlives it; the setting counts only in the transaction that set it, whatever
 * the value says later), SECURITY DEFINER (the outer user counts).
 */
#include "postgres.h"

#include "access/xact.h"
#include "base/compat.h"
#include "fence/present.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#define SETTING_MAX_TOKENS 1000

typedef struct Presented
{
	int64		token;
	SubTransactionId subid;
	bool		named;
	bool		role_checked;
} Presented;

/*
 * What the check hook makes of the setting.  The transaction is stamped here
 * and not by an assign hook: a rolled-back savepoint assigns the older value
 * again, in a transaction that has not set it.
 */
typedef struct TokenSetting
{
	LocalTransactionId lxid;
	int			count;
	uint8		role_checked[SETTING_MAX_TOKENS];
	int64		tokens[FLEXIBLE_ARRAY_MEMBER];
} TokenSetting;

static char *token_setting_text = NULL;
static TokenSetting *token_setting = NULL;

static Presented *presented = NULL;
static int	presented_count = 0;
static int	presented_room = 0;

/* A token argument, while its call runs; 0: none. */
static int64 call_token = 0;

static int64 *session_tokens = NULL;
static int	session_count = 0;
static int	session_room = 0;

/* One positive number; NULL when there is none.  *end is what follows it. */
static bool
parse_token(const char *text, int64 *token, const char **end)
{
	char	   *after;

	while (isspace((unsigned char) *text))
		text++;
	if (!isdigit((unsigned char) *text))
		return false;
	errno = 0;
	*token = strtoll(text, &after, 10);
	if (errno != 0 || *token <= 0)
		return false;
	while (isspace((unsigned char) *after))
		after++;
	*end = after;
	return *after == ',' || *after == '\0';
}

/* Parses into tokens, if that is not NULL; -1: not a list of tokens. */
static int
parse_tokens(const char *text, int64 *tokens)
{
	int			count = 0;
	int64		token;

	while (isspace((unsigned char) *text))
		text++;
	if (*text == '\0')
		return 0;
	for (;;)
	{
		if (count >= SETTING_MAX_TOKENS || !parse_token(text, &token, &text))
			return -1;
		if (tokens != NULL)
			tokens[count] = token;
		count++;
		if (*text == '\0')
			return count;
		text++;
	}
}

static bool
check_token_setting(char **newval, void **extra, GucSource source)
{
	int			count = parse_tokens(*newval, NULL);
	TokenSetting *setting;

	if (count < 0)
	{
		GUC_check_errdetail("\"%s\" is not a list of tokens: positive integers, separated by commas, at most %d.",
							*newval, SETTING_MAX_TOKENS);
		return false;
	}
	setting = lf_guc_malloc(offsetof(TokenSetting, tokens) + Max(count, 1) * sizeof(int64));
	if (setting == NULL)
		return false;
	memset(setting, 0, offsetof(TokenSetting, tokens));
	setting->lxid = MyProc != NULL ? LF_MY_LXID : InvalidLocalTransactionId;
	setting->count = count;
	parse_tokens(*newval, setting->tokens);
	*extra = setting;
	return true;
}

static void
assign_token_setting(const char *newval, void *extra)
{
	token_setting = extra;
}

/* The setting, if it was made in this transaction and says something. */
static TokenSetting *
setting_of_now(void)
{
	if (token_setting == NULL || token_setting->count == 0 ||
		token_setting->lxid != LF_MY_LXID ||
		token_setting->lxid == InvalidLocalTransactionId)
		return NULL;
	return token_setting;
}

bool
lf_present_setting_is_stale(void)
{
	return token_setting != NULL && token_setting->count > 0 &&
		setting_of_now() == NULL;
}

bool
lf_present_role_allowed(Oid role)
{
	return OidIsValid(role) ? has_privs_of_role(GetOuterUserId(), role) :
		superuser_arg(GetOuterUserId());
}

static LfMatch
match_role(Oid role)
{
	return lf_present_role_allowed(role) ? LF_MATCH_YES : LF_MATCH_WRONG_ROLE;
}

LfMatch
lf_present_match(int64 token, Oid role)
{
	TokenSetting *setting = setting_of_now();
	bool		named = setting != NULL;
	LfMatch		match = LF_MATCH_NONE;

	if (call_token == token)
		match = match_role(role);
	if (match == LF_MATCH_YES)
		return match;

	for (int i = 0; i < presented_count; i++)
	{
		Presented  *one = &presented[i];

		named |= one->named;
		if (one->token != token)
			continue;
		if (one->role_checked)
			return LF_MATCH_YES;
		match = match_role(role);
		one->role_checked = match == LF_MATCH_YES;
		if (one->role_checked)
			return LF_MATCH_YES;
	}
	for (int i = 0; setting != NULL && i < setting->count; i++)
	{
		if (setting->tokens[i] != token)
			continue;
		if (!setting->role_checked[i])
			match = match_role(role);
		if (setting->role_checked[i] || match == LF_MATCH_YES)
		{
			setting->role_checked[i] = true;
			return LF_MATCH_YES;
		}
	}
	for (int i = 0; !named && i < session_count; i++)
	{
		if (session_tokens[i] == token)
			return match_role(role);
	}
	return match;
}

static void *
make_room(void *array, int count, int *room, Size size)
{
	if (count < *room)
		return array;
	*room = Max(8, *room * 2);
	if (array == NULL)
		return MemoryContextAlloc(TopMemoryContext, *room * size);
	return repalloc(array, *room * size);
}

void
lf_present_add(int64 token, bool named)
{
	Presented  *one;

	for (int i = 0; i < presented_count; i++)
	{
		if (presented[i].token == token &&
			presented[i].subid == GetCurrentSubTransactionId())
		{
			presented[i].named |= named;
			return;
		}
	}
	presented = make_room(presented, presented_count, &presented_room, sizeof(Presented));
	one = &presented[presented_count++];
	one->token = token;
	one->subid = GetCurrentSubTransactionId();
	one->named = named;
	one->role_checked = false;
}

int64
lf_present_begin_call(int64 token)
{
	int64		before = call_token;

	call_token = token;
	return before;
}

void
lf_present_end_call(int64 before)
{
	call_token = before;
}

void
lf_present_session_add(int64 token)
{
	lf_present_session_remove(token);
	session_tokens = make_room(session_tokens, session_count, &session_room, sizeof(int64));
	session_tokens[session_count++] = token;
}

void
lf_present_session_remove(int64 token)
{
	int			kept = 0;

	for (int i = 0; i < session_count; i++)
	{
		if (session_tokens[i] != token)
			session_tokens[kept++] = session_tokens[i];
	}
	session_count = kept;
}

int
lf_present_list(int64 **tokens)
{
	TokenSetting *setting = setting_of_now();
	bool		named = setting != NULL;
	int			count = 0;

	*tokens = palloc((presented_count + session_count + SETTING_MAX_TOKENS + 1) * sizeof(int64));
	if (call_token != 0)
		(*tokens)[count++] = call_token;
	for (int i = 0; i < presented_count; i++)
	{
		named |= presented[i].named;
		(*tokens)[count++] = presented[i].token;
	}
	for (int i = 0; setting != NULL && i < setting->count; i++)
		(*tokens)[count++] = setting->tokens[i];
	for (int i = 0; !named && i < session_count; i++)
		(*tokens)[count++] = session_tokens[i];
	return count;
}

static void
forget_presented(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT ||
		event == XACT_EVENT_PREPARE)
		presented_count = 0;
}

static void
follow_savepoint(SubXactEvent event, SubTransactionId mySubid,
				 SubTransactionId parentSubid, void *arg)
{
	int			kept = 0;

	if (event != SUBXACT_EVENT_COMMIT_SUB && event != SUBXACT_EVENT_ABORT_SUB)
		return;
	for (int i = 0; i < presented_count; i++)
	{
		Presented	one = presented[i];

		if (one.subid == mySubid)
		{
			if (event == SUBXACT_EVENT_ABORT_SUB)
				continue;
			one.subid = parentSubid;
		}
		presented[kept++] = one;
	}
	presented_count = kept;
}

void
lf_present_install(void)
{
	DefineCustomStringVariable("lease_fence.token",
							   "The tokens under which this transaction writes.",
							   "Separated by commas. Counts only in the transaction that sets it: use SET LOCAL, or set_config(..., true).",
							   &token_setting_text,
							   "",
							   PGC_USERSET,
							   0,
							   check_token_setting, assign_token_setting, NULL);
	RegisterXactCallback(forget_presented, NULL);
	RegisterSubXactCallback(follow_savepoint, NULL);
}
