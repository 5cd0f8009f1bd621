/*
 * template.c
 *		Resource templates of guards: parsed once per table and process,
 *		rendered at each guarded row.
 *
 * Runs in every backend that writes a guarded table, and in protect().
 *
 * A name must depend on the row alone.  So nothing here calls a type's output
 * function: those of dates and timestamps look at DateStyle and TimeZone.
 * Types whose text we could not make ourselves in one way only (floats,
 * numeric, character(n) with its padding, domains, ...) are refused.
 */
#include "postgres.h"

#include "base/compat.h"
#include "fence/template.h"

#include "access/htup_details.h"
#include "access/sysattr.h"
#include "catalog/heap.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/date.h"
#include "utils/datetime.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

typedef enum LfPieceKind
{
	LF_PIECE_LITERAL,
	LF_PIECE_INT2,
	LF_PIECE_INT4,
	LF_PIECE_INT8,
	LF_PIECE_OID,
	LF_PIECE_BOOL,
	LF_PIECE_UUID,
	LF_PIECE_ENUM,
	LF_PIECE_TEXT,
	LF_PIECE_NAME,
	LF_PIECE_DATE,
	LF_PIECE_TIMESTAMP,
	LF_PIECE_TIMESTAMPTZ
} LfPieceKind;

typedef struct LfPiece
{
	LfPieceKind kind;
	AttrNumber	column;			/* 0 for literal text */
	uint16		start;			/* literal: where it is in LfTemplate.literal */
	uint16		length;
} LfPiece;

struct LfTemplate
{
	char		literal[LF_RESOURCE_MAX];	/* of all pieces, end to end */
	int			literal_length;
	int			npieces;
	LfPiece		pieces[FLEXIBLE_ARRAY_MEMBER];
};

/* Longest text of a type without a length of its own. */
#define LF_SCRATCH_SIZE (MAXDATELEN + 8)

/* ---------------------------------------------------------------------------
 * Parsing
 * ---------------------------------------------------------------------------
 */

static void
add_literal(LfTemplate *tmpl, const char *text, char byte)
{
	LfPiece    *last = tmpl->npieces > 0 ? &tmpl->pieces[tmpl->npieces - 1] : NULL;

	if (tmpl->literal_length >= LF_RESOURCE_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("resource template \"%s\" is too long", text),
				 errdetail("The name of a resource has at most %d bytes.",
						   LF_RESOURCE_MAX)));

	if (last == NULL || last->kind != LF_PIECE_LITERAL)
	{
		last = &tmpl->pieces[tmpl->npieces++];
		last->kind = LF_PIECE_LITERAL;
		last->column = 0;
		last->start = (uint16) tmpl->literal_length;
		last->length = 0;
	}
	tmpl->literal[tmpl->literal_length++] = byte;
	last->length++;
}

/* Column of that name, dropped ones left out; 0 when there is none. */
static AttrNumber
find_column(TupleDesc desc, const char *name)
{
	int			i;

	for (i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, i);

		if (!attribute->attisdropped &&
			strcmp(NameStr(attribute->attname), name) == 0)
			return attribute->attnum;
	}
	return 0;
}

static void
no_such_column(const char *text, const char *name)
{
	if (name[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("resource template \"%s\" has braces without a column", text),
				 errhint("Write a brace that is text as {{ or }}.")));

	if (SystemAttributeByName(name) != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("resource template \"%s\" names the system column \"%s\"",
						text, name),
				 errhint("Name columns that identify the row for as long as it lives.")));

	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("resource template \"%s\" names the column \"%s\", which the table does not have",
					text, name),
			 errhint("Names in braces are taken as they are, upper and lower case distinct. After a column was renamed or dropped, call lease_fence.protect() again.")));
}

/*
 * Reads a column's name from behind its opening brace; *cursor then stands
 * behind the closing one.
 *
 * A closing brace inside a name is doubled.  As it also may be text right
 * behind a column ("{{{id}}}", a hash tag of Redis), the shortest name that is
 * a column of the table wins.
 */
static AttrNumber
read_column(const char *text, TupleDesc desc, const char **cursor)
{
	const char *in = *cursor;
	char	   *name = palloc(strlen(in) + 1);
	char	   *first = NULL;	/* what stood before the first closing brace */
	int			length = 0;
	AttrNumber	column;

	for (; *in != '\0'; in++)
	{
		if (*in == '}')
		{
			name[length] = '\0';
			column = find_column(desc, name);
			if (column != 0)
			{
				pfree(name);
				*cursor = in + 1;
				return column;
			}
			if (first == NULL)
				first = pstrdup(name);
			if (in[1] != '}')
				no_such_column(text, first);
			in++;
		}
		name[length++] = *in;
	}

	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("resource template \"%s\" has an opening brace that is not closed", text),
			 errhint("Write a brace that is text as {{ or }}.")));
	return 0;					/* not reached */
}

/* How a column's type is rendered; LF_PIECE_LITERAL when it is not allowed. */
static LfPieceKind
kind_of_type(Form_pg_attribute attribute)
{
	switch (attribute->atttypid)
	{
		case INT2OID:
			return LF_PIECE_INT2;
		case INT4OID:
			return LF_PIECE_INT4;
		case INT8OID:
			return LF_PIECE_INT8;
		case OIDOID:
			return LF_PIECE_OID;
		case BOOLOID:
			return LF_PIECE_BOOL;
		case UUIDOID:
			return LF_PIECE_UUID;
		case TEXTOID:
		case VARCHAROID:
			return LF_PIECE_TEXT;
		case NAMEOID:
			return LF_PIECE_NAME;
		case DATEOID:
			return LF_PIECE_DATE;
		case TIMESTAMPOID:
			return LF_PIECE_TIMESTAMP;
		case TIMESTAMPTZOID:
			return LF_PIECE_TIMESTAMPTZ;
		default:
			if (get_typtype(attribute->atttypid) == TYPTYPE_ENUM)
				return LF_PIECE_ENUM;
			return LF_PIECE_LITERAL;
	}
}

static void
add_column(LfTemplate *tmpl, const char *text, Form_pg_attribute attribute)
{
	LfPieceKind kind = kind_of_type(attribute);
	const char *name = NameStr(attribute->attname);
	LfPiece    *piece;

	if (tmpl->npieces > 0 &&
		tmpl->pieces[tmpl->npieces - 1].kind != LF_PIECE_LITERAL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("resource template \"%s\" has no text between two columns", text),
				 errdetail("Different rows would share one resource by accident: 1 and 23 as well as 12 and 3 make 123."),
				 errhint("Put a separator before {%s}.", name)));

	if (attribute->attgenerated != '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("resource template \"%s\" names the generated column \"%s\"",
						text, name),
				 errdetail("A generated column has no value yet when the guard looks at the row."),
				 errhint("Name the columns that it is generated from.")));

	if (kind == LF_PIECE_LITERAL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("resource template \"%s\" names the column \"%s\" of type %s",
						text, name, format_type_be(attribute->atttypid)),
				 errhint("Allowed are smallint, integer, bigint, oid, boolean, uuid, enums, text, varchar, name, date, timestamp and timestamptz.")));

	if (OidIsValid(attribute->attcollation) &&
		!get_collation_isdeterministic(attribute->attcollation))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("resource template \"%s\" names the column \"%s\" of a nondeterministic collation",
						text, name),
				 errdetail("Values that are equal to the table would be different resources.")));

	piece = &tmpl->pieces[tmpl->npieces++];
	piece->kind = kind;
	piece->column = attribute->attnum;
	piece->start = 0;
	piece->length = 0;
}

/* At most this many pieces: each column, and literal text around each. */
static int
count_pieces(const char *text)
{
	int			columns = 0;

	for (; *text != '\0'; text++)
	{
		if (*text == '{')
			columns++;
	}
	return 2 * columns + 1;
}

LfTemplate *
lf_template_parse(const char *text, TupleDesc desc)
{
	LfTemplate *tmpl;
	const char *cursor = text;

	if (text[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a resource template must not be empty"),
				 errhint("Name the resource of a row from its columns, as in 'stock:{id}'.")));

	tmpl = palloc0(offsetof(LfTemplate, pieces) +
				   count_pieces(text) * sizeof(LfPiece));

	while (*cursor != '\0')
	{
		char		byte = *cursor++;

		if (byte == '{' && *cursor != '{')
		{
			AttrNumber	column = read_column(text, desc, &cursor);

			add_column(tmpl, text, TupleDescAttr(desc, column - 1));
			continue;
		}

		if (byte == '{' || byte == '}')
		{
			if (*cursor != byte)
				ereport(ERROR,
						(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						 errmsg("resource template \"%s\" has a closing brace without an opening one",
								text),
						 errhint("Write a brace that is text as {{ or }}.")));
			cursor++;
		}
		add_literal(tmpl, text, byte);
	}
	return tmpl;
}

int
lf_template_columns(const LfTemplate *tmpl, AttrNumber *columns, int max)
{
	int			count = 0;
	int			i;

	for (i = 0; i < tmpl->npieces && count < max; i++)
	{
		AttrNumber	column = tmpl->pieces[i].column;
		int			seen = 0;

		if (column == 0)
			continue;
		while (seen < count && columns[seen] != column)
			seen++;
		if (seen == count)
			columns[count++] = column;
	}
	return count;
}

/* ---------------------------------------------------------------------------
 * Rendering
 * ---------------------------------------------------------------------------
 */

static inline bool
append(LfResource *out, const char *bytes, Size length)
{
	if (length > (Size) (LF_RESOURCE_MAX - out->length))
		return false;
	memcpy(out->name + out->length, bytes, length);
	out->length += (uint16) length;
	return true;
}

static bool
append_text(LfResource *out, Datum value)
{
	struct varlena *text = PG_DETOAST_DATUM_PACKED(value);
	bool		fits = append(out, VARDATA_ANY(text), VARSIZE_ANY_EXHDR(text));

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
	fits = append(out, label, strlen(label));
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
	return append(out, scratch, to - scratch);
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

static bool
append_value(LfResource *out, LfPieceKind kind, Datum value)
{
	char		scratch[LF_SCRATCH_SIZE];

	switch (kind)
	{
		case LF_PIECE_INT2:
			return append(out, scratch, pg_ltoa(DatumGetInt16(value), scratch));
		case LF_PIECE_INT4:
			return append(out, scratch, pg_ltoa(DatumGetInt32(value), scratch));
		case LF_PIECE_INT8:
			return append(out, scratch, pg_lltoa(DatumGetInt64(value), scratch));
		case LF_PIECE_OID:
			return append(out, scratch, pg_ultoa_n(DatumGetObjectId(value), scratch));
		case LF_PIECE_BOOL:
			return DatumGetBool(value) ? append(out, "true", 4) : append(out, "false", 5);
		case LF_PIECE_UUID:
			return append_uuid(out, DatumGetUUIDP(value));
		case LF_PIECE_ENUM:
			return append_enum(out, DatumGetObjectId(value));
		case LF_PIECE_TEXT:
			return append_text(out, value);
		case LF_PIECE_NAME:
			return append(out, NameStr(*DatumGetName(value)),
						  strlen(NameStr(*DatumGetName(value))));
		case LF_PIECE_DATE:
			render_date(DatumGetDateADT(value), scratch);
			break;
		case LF_PIECE_TIMESTAMP:
			render_timestamp(DatumGetTimestamp(value), false, scratch);
			break;
		case LF_PIECE_TIMESTAMPTZ:
			render_timestamp(DatumGetTimestampTz(value), true, scratch);
			break;
		case LF_PIECE_LITERAL:
			Assert(false);
			break;
	}
	return append(out, scratch, strlen(scratch));
}

bool
lf_template_render(const LfTemplate *tmpl, HeapTuple tuple, TupleDesc desc,
				   LfResource *out, AttrNumber *null_column)
{
	int			i;

	out->database = MyDatabaseId;
	out->length = 0;
	*null_column = 0;

	for (i = 0; i < tmpl->npieces; i++)
	{
		const LfPiece *piece = &tmpl->pieces[i];
		Datum		value;
		bool		isnull;

		if (piece->kind == LF_PIECE_LITERAL)
		{
			if (!append(out, tmpl->literal + piece->start, piece->length))
				return false;
			continue;
		}

		value = heap_getattr(tuple, piece->column, desc, &isnull);
		if (isnull)
		{
			*null_column = piece->column;
			return false;
		}
		if (!append_value(out, piece->kind, value))
			return false;
	}
	return out->length > 0;
}
