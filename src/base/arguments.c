/*
 * arguments.c
 *		Checking what SQL callers pass.
 *
 * Runs in backends.  Nothing is asked, granted or changed before every argument
 * was looked at.
 */
#include "postgres.h"

#include "base/compat.h"
#include "base/arguments.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#define TTL_MIN			INT64CONST(10000)	/* 10 ms */
#define MONTHS_A_YEAR	12
#define DAYS_A_MONTH	30

/* How long the answer "not at once" may take when the worker is held up. */
#define NO_WAIT_LIMIT	INT64CONST(10000000)

/* As EXTRACT(epoch FROM interval) counts: a year has 365.25 days. */
#define YEAR			(INT64CONST(36525) * (USECS_PER_DAY / 100))
#define TTL_MAX			YEAR

static void
refuse_null(const char *argument)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("argument \"%s\" must not be NULL", argument)));
}

void
lf_argument_resource_text(text *value, const char *argument, LfResource *resource)
{
	int			length = VARSIZE_ANY_EXHDR(value);

	if (length == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must not be empty", argument),
				 errhint("The name of a resource has 1 to %d bytes.", LF_RESOURCE_MAX)));
	if (length > LF_RESOURCE_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" is too long: %d bytes", argument, length),
				 errdetail("It begins with \"%s\".",
						   text_to_cstring((text *) DatumGetPointer(
							DirectFunctionCall2(text_left, PointerGetDatum(value), Int32GetDatum(40))))),
				 errhint("The name of a resource has 1 to %d bytes.", LF_RESOURCE_MAX)));
	resource->database = MyDatabaseId;
	resource->length = length;
	memcpy(resource->name, VARDATA_ANY(value), length);
}

void
lf_argument_resource(FunctionCallInfo fcinfo, int number, const char *argument,
					 LfResource *resource)
{
	if (PG_ARGISNULL(number))
		refuse_null(argument);
	lf_argument_resource_text(PG_GETARG_TEXT_PP(number), argument, resource);
}

int64
lf_argument_token(FunctionCallInfo fcinfo, int number, const char *argument)
{
	int64		token;

	if (PG_ARGISNULL(number))
		refuse_null(argument);
	token = PG_GETARG_INT64(number);
	if (token <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must be positive: %lld", argument, (long long) token)));
	return token;
}

static char *
interval_text(Interval *interval)
{
	return DatumGetCString(DirectFunctionCall1(interval_out, IntervalPGetDatum(interval)));
}

/* Microseconds; more than any limit of ours when it is that long. */
static int64
interval_microseconds(Interval *interval)
{
	int64		days = (int64) interval->day +
		(int64) (interval->month % MONTHS_A_YEAR) * DAYS_A_MONTH;
	int64		years = interval->month / MONTHS_A_YEAR;
	int64		longer;

	/* 292 000 years of 64-bit microseconds; infinite intervals come here too */
	if (years > 200000 || years < -200000 ||
		interval->day > 70000000 || interval->day < -70000000)
		return years < 0 || interval->day < 0 ? PG_INT64_MIN : PG_INT64_MAX;
	longer = years * YEAR + days * USECS_PER_DAY;
	if (interval->time > 0 && longer > PG_INT64_MAX - interval->time)
		return PG_INT64_MAX;
	if (interval->time < 0 && longer < PG_INT64_MIN - interval->time)
		return PG_INT64_MIN;
	return longer + interval->time;
}

int64
lf_argument_ttl(FunctionCallInfo fcinfo, int number)
{
	Interval   *interval;
	int64		microseconds;

	if (PG_ARGISNULL(number))
		return 0;
	interval = PG_GETARG_INTERVAL_P(number);
	microseconds = interval_microseconds(interval);
	if (microseconds < TTL_MIN || microseconds > TTL_MAX || microseconds % 1000 != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"ttl\" is not allowed: %s", interval_text(interval)),
				 errhint("A ttl is a whole number of milliseconds, from 10 ms to 1 year.")));
	return microseconds;
}

LfClock
lf_argument_wait(FunctionCallInfo fcinfo, int number, bool *no_wait)
{
	Interval   *interval;
	int64		microseconds;

	*no_wait = false;
	if (PG_ARGISNULL(number))
		return LF_CLOCK_NEVER;
	interval = PG_GETARG_INTERVAL_P(number);
	microseconds = interval_microseconds(interval);
	if (microseconds < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"wait\" must not be negative: %s", interval_text(interval)),
				 errhint("NULL waits as long as it takes, within statement_timeout.")));
	*no_wait = microseconds == 0;
	return lf_clock_after(lf_clock_now(), *no_wait ? NO_WAIT_LIMIT : microseconds);
}

bool
lf_argument_holder(FunctionCallInfo fcinfo, int number, LfHolder *holder)
{
	text	   *value;
	int			length;

	if (PG_ARGISNULL(number))
		return false;
	value = PG_GETARG_TEXT_PP(number);
	length = VARSIZE_ANY_EXHDR(value);
	if (length == 0 || length > LF_HOLDER_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"holder\" has %d bytes", length),
				 errhint("A holder has 1 to %d bytes.", LF_HOLDER_MAX)));
	holder->length = length;
	memcpy(holder->bytes, VARDATA_ANY(value), length);
	return true;
}

char *
lf_argument_text(FunctionCallInfo fcinfo, int number)
{
	return PG_ARGISNULL(number) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(number));
}

Datum
lf_interval_datum(int64 microseconds)
{
	Interval   *interval = palloc0(sizeof(Interval));

	interval->time = microseconds;
	return IntervalPGetDatum(interval);
}
