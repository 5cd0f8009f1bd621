/*
 * amount.c
 *		Amounts and limits of counters, in the type of their column.
 *
 * Runs in backends.  The arithmetic is numeric, so that nothing overflows; what
 * comes out is of the column's type, so that the statement compares and
 * subtracts without a cast.
 */
#include "postgres.h"

#include "base/compat.h"
#include "catalog/pg_type.h"
#include "fence/amount.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"

static Datum
numeric_of(int64 value)
{
	return NumericGetDatum(int64_to_numeric(value));
}

static bool
less(Datum a, Datum b)
{
	return DatumGetBool(DirectFunctionCall2(numeric_lt, a, b));
}

/* Range of an integer type; false: not an integer type. */
static bool
integer_range(Oid type, int64 *low, int64 *high)
{
	switch (type)
	{
		case INT2OID:
			*low = PG_INT16_MIN;
			*high = PG_INT16_MAX;
			return true;
		case INT4OID:
			*low = PG_INT32_MIN;
			*high = PG_INT32_MAX;
			return true;
		case INT8OID:
			*low = PG_INT64_MIN;
			*high = PG_INT64_MAX;
			return true;
		default:
			return false;
	}
}

static Datum
integer_datum(Oid type, Datum number)
{
	int64		value = DatumGetInt64(DirectFunctionCall1(numeric_int8, number));

	switch (type)
	{
		case INT2OID:
			return Int16GetDatum((int16) value);
		case INT4OID:
			return Int32GetDatum((int32) value);
		default:
			return Int64GetDatum(value);
	}
}

static void
refuse(Form_pg_attribute attribute, Numeric amount, const char *why)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("argument \"amount\" is not allowed for column \"%s\": %s",
					NameStr(attribute->attname),
					DatumGetCString(DirectFunctionCall1(numeric_out, NumericGetDatum(amount)))),
			 errdetail_internal("%s", why)));
}

static void
check_amount(Form_pg_attribute attribute, Numeric amount)
{
	if (numeric_is_nan(amount) || numeric_is_inf(amount) ||
		!less(numeric_of(0), NumericGetDatum(amount)))
		refuse(attribute, amount, "It must be positive and finite.");
}

/* The limit, moved by the amount: what the old value is compared with. */
static Datum
move_limit(Datum limit, Datum amount, bool down)
{
	return DirectFunctionCall2(down ? numeric_add : numeric_sub, limit, amount);
}

static void
integer_amount(Form_pg_attribute attribute, Oid type, bool down,
			   Numeric amount, Numeric limit, LfAmount *result)
{
	int64		low = 0;
	int64		high = 0;
	Datum		moved;

	integer_range(type, &low, &high);
	if (DatumGetBool(DirectFunctionCall2(numeric_ne, NumericGetDatum(amount),
										 DirectFunctionCall2(numeric_trunc, NumericGetDatum(amount),
															 Int32GetDatum(0)))))
		refuse(attribute, amount, "The column holds integers.");
	if (less(numeric_of(high), NumericGetDatum(amount)))
		refuse(attribute, amount, "It is beyond the range of the column's type.");
	result->amount = integer_datum(type, NumericGetDatum(amount));
	if (limit == NULL)
		return;

	moved = DirectFunctionCall1(down ? numeric_ceil : numeric_floor, NumericGetDatum(limit));
	if (less(moved, numeric_of(low)))
		moved = numeric_of(low);
	if (less(numeric_of(high), moved))
		moved = numeric_of(high);
	/* a limit beyond the type's range cannot be met on that side */
	result->never = down ? less(numeric_of(high), NumericGetDatum(limit)) :
		less(NumericGetDatum(limit), numeric_of(low));
	moved = move_limit(moved, NumericGetDatum(amount), down);
	result->never = result->never ||
		(down ? less(numeric_of(high), moved) : less(moved, numeric_of(low)));
	result->bounded = !result->never;
	if (result->bounded)
		result->bound = integer_datum(type, moved);
}

/* As numeric's own code packs them; false: the type has no limits. */
static bool
numeric_limits(int32 typmod, int *precision, int *scale)
{
	if (typmod < (int32) VARHDRSZ)
		return false;
	*precision = ((typmod - VARHDRSZ) >> 16) & 0xffff;
	*scale = (((typmod - VARHDRSZ) & 0x7ff) ^ 1024) - 1024;
	return true;
}

static void
check_digits(Form_pg_attribute attribute, int32 typmod, Datum amount)
{
	int			precision;
	int			scale;
	Datum		kept;
	Datum		end;

	if (!numeric_limits(typmod, &precision, &scale))
		return;
	kept = DirectFunctionCall2(numeric_round, amount, Int32GetDatum(scale));
	if (DatumGetBool(DirectFunctionCall2(numeric_ne, kept, amount)))
		refuse(attribute, DatumGetNumeric(amount), "It has more digits than the column keeps.");
	end = DirectFunctionCall2(numeric_power, numeric_of(10), numeric_of(precision - scale));
	if (!less(amount, end))
		refuse(attribute, DatumGetNumeric(amount), "It is beyond the range of the column's type.");
}

static void
numeric_amount(Form_pg_attribute attribute, bool down, Numeric amount,
			   Numeric limit, LfAmount *result)
{
	int32		typmod = attribute->atttypmod;

	/* a domain keeps its type's limits to itself */
	getBaseTypeAndTypmod(attribute->atttypid, &typmod);
	check_digits(attribute, typmod, NumericGetDatum(amount));
	result->amount = NumericGetDatum(amount);
	result->bounded = limit != NULL;
	if (result->bounded)
		result->bound = move_limit(NumericGetDatum(limit), NumericGetDatum(amount), down);
}

/* ---- the last answer ---- */

/*
 * One caller's amounts hardly ever change, and the arithmetic of numeric costs as
 * much as finding the row.  Only answers of integer columns are kept: they are no
 * pointers.
 */
#define KEPT_BYTES 32

/* Compared as bytes: it has no room between its members. */
typedef struct Question
{
	Oid			type;
	uint32		down;
	uint8		amount[KEPT_BYTES];
	uint8		limit[KEPT_BYTES];	/* zero: none */
} Question;

static Question last_question;	/* its type is 0 while there is none */
static LfAmount last_answer;

static bool
copy_number(uint8 *bytes, Numeric number)
{
	if (number == NULL)
		return true;
	if (VARSIZE(number) > KEPT_BYTES)
		return false;
	memcpy(bytes, number, VARSIZE(number));
	return true;
}

static void
integer_amount_kept(Form_pg_attribute attribute, Oid type, bool down,
					Numeric amount, Numeric limit, LfAmount *result)
{
	Question	question;
	bool		keep;

	memset(&question, 0, sizeof(question));
	question.type = type;
	question.down = down;
	keep = copy_number(question.amount, amount) && copy_number(question.limit, limit);
	if (keep && memcmp(&question, &last_question, sizeof(question)) == 0)
	{
		*result = last_answer;
		return;
	}
	check_amount(attribute, amount);
	if (limit != NULL && numeric_is_inf(limit))
	{
		/* the limit that is no limit, or the one that nothing can meet */
		result->never = down != less(NumericGetDatum(limit), numeric_of(0));
		limit = NULL;
	}
	integer_amount(attribute, type, down, amount, limit, result);
	if (keep)
	{
		last_question = question;
		last_answer = *result;
	}
}

void
lf_amount_for_column(Form_pg_attribute attribute, bool down, Numeric amount,
					 Numeric limit, LfAmount *result)
{
	Oid			type = getBaseType(attribute->atttypid);
	int64		low;
	int64		high;

	memset(result, 0, sizeof(*result));
	if (limit != NULL && numeric_is_nan(limit))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must not be NaN", down ? "floor" : "ceiling")));
	if (integer_range(type, &low, &high))
		integer_amount_kept(attribute, type, down, amount, limit, result);
	else if (type == NUMERICOID)
	{
		check_amount(attribute, amount);
		numeric_amount(attribute, down, amount, limit, result);
	}
	else
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("column \"%s\" of type %s is not a counter",
						NameStr(attribute->attname), format_type_be(attribute->atttypid)),
				 errhint("A counter is smallint, integer, bigint or numeric.")));
}
