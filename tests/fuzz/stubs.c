/*
 * stubs.c
 *		What the extension's files call of PostgreSQL, as little of it as will do:
 *		memory comes from malloc, so that sanitizers see each piece, and an error
 *		goes to the target's PG_CATCH.
 */
#include "postgres.h"

#include "lib/ilist.h"
#include "stubs.h"

#undef fprintf
#undef snprintf
#undef vsnprintf

MemoryContext CurrentMemoryContext = NULL;
MemoryContext TopMemoryContext = NULL;
sigjmp_buf *PG_exception_stack = NULL;
ErrorContextCallback *error_context_stack = NULL;
Oid			MyDatabaseId = 1;

static PGPROC process;
PGPROC	   *MyProc = &process;

/* ---- checks ---- */

void
ExceptionalCondition_of_fuzz(const char *condition, const char *file, int line)
{
	fprintf(stderr, "%s:%d: not so: %s\n", file, line, condition);
	abort();
}

#if PG_VERSION_NUM >= 160000
void
ExceptionalCondition(const char *condition, const char *file, int line)
#else
void
ExceptionalCondition(const char *condition, const char *type, const char *file, int line)
#endif
{
	ExceptionalCondition_of_fuzz(condition, file, line);
}

/* ---- memory ---- */

static dlist_head pieces = DLIST_STATIC_INIT(pieces);

void *
palloc(Size size)
{
	dlist_node *piece = malloc(sizeof(dlist_node) + size);

	if (piece == NULL)
		abort();
	dlist_push_tail(&pieces, piece);
	return piece + 1;
}

void *
palloc0(Size size)
{
	return memset(palloc(size), 0, size);
}

void
pfree(void *pointer)
{
	dlist_node *piece = (dlist_node *) pointer - 1;

	dlist_delete(piece);
	free(piece);
}

void *
repalloc(void *pointer, Size size)
{
	dlist_node *piece = (dlist_node *) pointer - 1;

	dlist_delete(piece);
	piece = realloc(piece, sizeof(dlist_node) + size);
	if (piece == NULL)
		abort();
	dlist_push_tail(&pieces, piece);
	return piece + 1;
}

char *
pstrdup(const char *text)
{
	return strcpy(palloc(strlen(text) + 1), text);
}

void *
MemoryContextAlloc(MemoryContext context, Size size)
{
	return palloc(size);
}

void *
MemoryContextAllocZero(MemoryContext context, Size size)
{
	return palloc0(size);
}

MemoryContext
AllocSetContextCreateInternal(MemoryContext parent, const char *name, Size minimal,
							  Size initial, Size maximal)
{
	return NULL;
}

void
fuzz_forget(void)
{
	while (!dlist_is_empty(&pieces))
		pfree(dlist_head_node(&pieces) + 1);
}

char *
fuzz_text(const uint8 *data, size_t size)
{
	char	   *text = palloc(size + 1);

	if (size > 0)
		memcpy(text, data, size);
	text[size] = '\0';
	return pstrdup(text);
}

/* ---- text ---- */

int
pg_vsnprintf(char *to, size_t size, const char *format, va_list arguments)
{
	return vsnprintf(to, size, format, arguments);
}

int
pg_lltoa(int64 value, char *to)
{
	return snprintf(to, 24, "%lld", (long long) value);
}

int
pg_ultoa_n(uint32 value, char *to)
{
	return snprintf(to, 12, "%u", value);
}

int
pg_snprintf(char *to, size_t size, const char *format,...)
{
	va_list		arguments;
	int			length;

	va_start(arguments, format);
	length = vsnprintf(to, size, format, arguments);
	va_end(arguments);
	return length;
}

char *
pg_strerror(int number)
{
	return "an error of the system";
}

size_t
strlcpy(char *to, const char *from, size_t size)
{
	snprintf(to, size, "%s", from);
	return strlen(from);
}

size_t
strlcat(char *to, const char *from, size_t size)
{
	size_t		length = strlen(to);

	return length + strlcpy(to + length, from, size - length);
}

/* ---- errors ---- */

/* Messages are made, and thrown away: what they are made of must be there. */
static int
format(const char *text, va_list arguments)
{
	char		scratch[16384];

	return vsnprintf(scratch, sizeof(scratch), text, arguments);
}

#define MESSAGE_PART(name) \
int \
name(const char *text,...) \
{ \
	va_list		arguments; \
\
	va_start(arguments, text); \
	format(text, arguments); \
	va_end(arguments); \
	return 0; \
}

MESSAGE_PART(errmsg)
MESSAGE_PART(errmsg_internal)
MESSAGE_PART(errdetail)
MESSAGE_PART(errdetail_internal)
MESSAGE_PART(errhint)

int
errcode(int code)
{
	return 0;
}

static int	level;

bool
errstart(int elevel, const char *domain)
{
	level = elevel;
	return true;
}

bool
errstart_cold(int elevel, const char *domain)
{
	return errstart(elevel, domain);
}

void
errfinish(const char *file, int line, const char *function)
{
	if (level < ERROR)
		return;
	FUZZ_CHECK(PG_exception_stack != NULL);
	siglongjmp(*PG_exception_stack, 1);
}

/* Of a setting's check hook. */
char	   *GUC_check_errdetail_string = NULL;

void
pre_format_elog_string(int number, const char *domain)
{
}

char *
format_elog_string(const char *text,...)
{
	va_list		arguments;

	va_start(arguments, text);
	format(text, arguments);
	va_end(arguments);
	return NULL;
}

void *
guc_malloc(int elevel, size_t size)
{
	return malloc(size);
}

void
guc_free(void *pointer)
{
	free(pointer);
}
