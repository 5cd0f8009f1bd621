/*
 * template.c
 *		Resource templates of guards: parsed once per table and process,
 *		rendered at each guarded row.
 *
 * Runs in every backend that writes a guarded table, and in protect().
 * How a value becomes text, and of which types, is value.c's business.
 */
#include "postgres.h"

#include "base/compat.h"
#include "fence/template.h"
#include "fence/value.h"

#include "access/htup_details.h"
#include "access/sysattr.h"
#include "catalog/heap.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

typedef struct LfPiece
{
	LfValueKind kind;			/* LF_VALUE_NONE: literal text */
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

	if (last == NULL || last->kind != LF_VALUE_NONE)
	{
		last = &tmpl->pieces[tmpl->npieces++];
		last->kind = LF_VALUE_NONE;
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

static void
add_column(LfTemplate *tmpl, const char *text, Form_pg_attribute attribute)
{
	LfValueKind kind = lf_value_kind(attribute->atttypid);
	const char *name = NameStr(attribute->attname);
	LfPiece    *piece;

	if (tmpl->npieces > 0 &&
		tmpl->pieces[tmpl->npieces - 1].kind != LF_VALUE_NONE)
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

	if (kind == LF_VALUE_NONE)
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

		if (piece->kind == LF_VALUE_NONE)
		{
			if (!lf_value_append_bytes(out, tmpl->literal + piece->start,
									   piece->length))
				return false;
			continue;
		}

		value = heap_getattr(tuple, piece->column, desc, &isnull);
		if (isnull)
		{
			*null_column = piece->column;
			return false;
		}
		if (!lf_value_append(out, piece->kind, value))
			return false;
	}
	return out->length > 0;
}
