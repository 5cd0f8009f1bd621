/*
 * value.c
 *		A column's value as part of a resource's name.
 *
 * Runs in every backend that writes a guarded table, and in protect().
 *
 * A name must depend on the row alone.  So nothing here calls a type's output
 * function: those of dates and timestamps look at DateStyle and TimeZone.
 * Types whose text we could not make ourselves in one way only (floats,
 * numeric, character(n) with its padding, domains, ...) have no kind, and
 * template.c refuses them.
 *
 * What must end well: a value for which the name has no room any more (nothing
 * of it is added), an enum whose label is gone (an error).
 */
#include "postgres.h"

#include "base/compat.h"
#include "fence/value.h"

#include "access/htup_details.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/date.h"
#include "utils/datetime.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

/* Longest text of a type without a length of its own. */
#define LF_SCRATCH_SIZE (MAXDATELEN + 8)

LfValueKind
lf_value_kind(Oid type)
{
	switch (type)
	{
		case INT2OID:
			return LF_VALUE_INT2;
		case INT4OID:
			return LF_VALUE_INT4;
		case INT8OID:
			return LF_VALUE_INT8;
		case OIDOID:
			return LF_VALUE_OID;
		case BOOLOID:
			return LF_VALUE_BOOL;
		case UUIDOID:
			return LF_VALUE_UUID;
		case TEXTOID:
		case VARCHAROID:
			return LF_VALUE_TEXT;
		case NAMEOID:
			return LF_VALUE_NAME;
		case DATEOID:
			return LF_VALUE_DATE;
		case TIMESTAMPOID:
			return LF_VALUE_TIMESTAMP;
		case TIMESTAMPTZOID:
			return LF_VALUE_TIMESTAMPTZ;
		default:
			if (get_typtype(type) == TYPTYPE_ENUM)
				return LF_VALUE_ENUM;
			return LF_VALUE_NONE;
	}
}

static bool
append_text(LfResource *out, Datum value)
{
	struct varlena *text = PG_DETOAST_DATUM_PACKED(value);
	bool		fits = lf_value_append_bytes(out, VARDATA_ANY(text),
											 VARSIZE_ANY_EXHDR(text));

	if ((Pointer) text != DatumGetPointer(value))
		pfree(text);
	return fits;
}

static bool
append_enum(LfResource *out, Oid value)
{
	HeapTuple	tuple = SearchSysCache1(ENUMOID, ObjectIdGetDatum(value));
	const char *label;
	bool		fits;

	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_BINARY_REPRESENTATION),
				 errmsg("invalid internal value for enum: %u", value)));
	label = NameStr(((Form_pg_enum) GETSTRUCT(tuple))->enumlabel);
	fits = lf_value_append_bytes(out, label, strlen(label));
	ReleaseSysCache(tuple);
	return fits;
}

static bool
append_uuid(LfResource *out, const pg_uuid_t *uuid)
{
	static const char digits[] = "0123456789abcdef";
	char		scratch[2 * UUID_LEN + 4];
	char	   *to = scratch;
	int			i;

	for (i = 0; i < UUID_LEN; i++)
	{
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*to++ = '-';
		*to++ = digits[uuid->data[i] >> 4];
		*to++ = digits[uuid->data[i] & 0x0F];
	}
	return lf_value_append_bytes(out, scratch, to - scratch);
}

static void
render_date(DateADT date, char *scratch)
{
	struct pg_tm tm;

	if (DATE_NOT_FINITE(date))
	{
		EncodeSpecialDate(date, scratch);
		return;
	}
	j2date(date + POSTGRES_EPOCH_JDATE, &tm.tm_year, &tm.tm_mon, &tm.tm_mday);
	EncodeDateOnly(&tm, USE_ISO_DATES, scratch);
}

/* A timestamptz is UTC inside: without a zone it decodes as that. */
static void
render_timestamp(Timestamp timestamp, bool utc, char *scratch)
{
	struct pg_tm tm;
	fsec_t		fsec;

	if (TIMESTAMP_NOT_FINITE(timestamp))
	{
		EncodeSpecialTimestamp(timestamp, scratch);
		return;
	}
	if (timestamp2tm(timestamp, NULL, &tm, &fsec, NULL, NULL) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_DATETIME_VALUE_OUT_OF_RANGE),
				 errmsg("timestamp out of range")));
	EncodeDateTime(&tm, fsec, false, 0, NULL, USE_XSD_DATES, scratch);
	if (utc)
		strcat(scratch, "Z");
}

bool
lf_value_append(LfResource *out, LfValueKind kind, Datum value)
{
	char		scratch[LF_SCRATCH_SIZE];

	switch (kind)
	{
		case LF_VALUE_INT2:
			return lf_value_append_bytes(out, scratch,
										 pg_ltoa(DatumGetInt16(value), scratch));
		case LF_VALUE_INT4:
			return lf_value_append_bytes(out, scratch,
										 pg_ltoa(DatumGetInt32(value), scratch));
		case LF_VALUE_INT8:
			return lf_value_append_bytes(out, scratch,
										 pg_lltoa(DatumGetInt64(value), scratch));
		case LF_VALUE_OID:
			return lf_value_append_bytes(out, scratch,
										 pg_ultoa_n(DatumGetObjectId(value), scratch));
		case LF_VALUE_BOOL:
			if (DatumGetBool(value))
				return lf_value_append_bytes(out, "true", 4);
			return lf_value_append_bytes(out, "false", 5);
		case LF_VALUE_UUID:
			return append_uuid(out, DatumGetUUIDP(value));
		case LF_VALUE_ENUM:
			return append_enum(out, DatumGetObjectId(value));
		case LF_VALUE_TEXT:
			return append_text(out, value);
		case LF_VALUE_NAME:
			return lf_value_append_bytes(out, NameStr(*DatumGetName(value)),
										 strlen(NameStr(*DatumGetName(value))));
		case LF_VALUE_DATE:
			render_date(DatumGetDateADT(value), scratch);
			break;
		case LF_VALUE_TIMESTAMP:
			render_timestamp(DatumGetTimestamp(value), false, scratch);
			break;
		case LF_VALUE_TIMESTAMPTZ:
			render_timestamp(DatumGetTimestampTz(value), true, scratch);
			break;
		case LF_VALUE_NONE:
			Assert(false);
			break;
	}
	return lf_value_append_bytes(out, scratch, strlen(scratch));
}
