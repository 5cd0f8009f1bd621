/*
 * template.c
 *		Resource templates of guards.
 *
 * The table has columns with names that look like pieces of templates; values
 * are one letter each.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"

/* A row is not needed to see how it is rendered. */
#define heap_getattr(tuple, number, desc, isnull) \
	(*(isnull) = false, (Datum) (number))

#include "fence/template.c"

#include "stubs.h"

static const char *const names[] = {
	"id", "a}b", "}", "{", "id}", "a b", "gone", "generated", "float", "collated", "i"
};

static TupleDesc desc = NULL;

static void
make_desc(void)
{
	/* where the attributes are in it depends on the version, not beyond that */
	desc = calloc(1, 64 + lengthof(names) * (sizeof(FormData_pg_attribute) + 64));
	desc->natts = lengthof(names);
	for (int i = 0; i < lengthof(names); i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, i);

		strcpy(NameStr(attribute->attname), names[i]);
		attribute->attnum = i + 1;
		attribute->atttypid = strcmp(names[i], "float") == 0 ? FLOAT8OID : INT8OID;
		attribute->attcollation = strcmp(names[i], "collated") == 0 ? 1 : 0;
		attribute->attisdropped = strcmp(names[i], "gone") == 0;
		attribute->attgenerated = strcmp(names[i], "generated") == 0 ? 's' : '\0';
	}
}

/* ---- what template.c calls ---- */

LfValueKind
lf_value_kind(Oid type)
{
	return type == INT8OID ? LF_VALUE_INT8 : LF_VALUE_NONE;
}

bool
lf_value_append(LfResource *out, LfValueKind kind, Datum value)
{
	return lf_value_append_bytes(out, &"?abcdefghijk"[value], 1);
}

const FormData_pg_attribute *
SystemAttributeByName(const char *name)
{
	return strcmp(name, "ctid") == 0 ? TupleDescAttr(desc, 0) : NULL;
}

bool
get_collation_isdeterministic(Oid collation)
{
	return false;
}

char *
format_type_be(Oid type)
{
	return pstrdup("double precision");
}

/* ---- ---- */

static void
check_template(const LfTemplate *tmpl, const char *text)
{
	AttrNumber	columns[3];
	AttrNumber	null_column;
	LfResource	name;
	int			count = lf_template_columns(tmpl, columns, lengthof(columns));
	bool		rendered = lf_template_render(tmpl, NULL, desc, &name, &null_column);

	FUZZ_CHECK(count <= lengthof(columns));
	for (int i = 0; i < count; i++)
		FUZZ_CHECK(columns[i] >= 1 && columns[i] <= desc->natts);
	FUZZ_CHECK(!rendered || (name.length >= 1 && name.length <= LF_RESOURCE_MAX));
	FUZZ_CHECK(!rendered || name.length <= strlen(text));

	/* text without braces is its own name */
	if (rendered && strpbrk(text, "{}") == NULL)
		FUZZ_CHECK(name.length == strlen(text) &&
				   memcmp(name.name, text, name.length) == 0);
}

int
LLVMFuzzerTestOneInput(const uint8 *data, size_t size)
{
	char	   *volatile text = fuzz_text(data, size);

	if (desc == NULL)
		make_desc();
	PG_TRY();
	{
		check_template(lf_template_parse(text, desc), text);
	}
	PG_CATCH();
	{
		/* not a template */
	}
	PG_END_TRY();
	fuzz_forget();
	return 0;
}
