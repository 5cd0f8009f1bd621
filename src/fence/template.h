/*
 * template.h
 *		Resource templates of guards: 'stock:{id}'.
 *
 * A template is text with columns in braces; {{ and }} stand for braces.  It
 * names the resource of a row from the row's own columns, rendered by us and
 * never by a session's settings (DateStyle, TimeZone, extra_float_digits...),
 * so that one row has one name.
 */
#ifndef LF_FENCE_TEMPLATE_H
#define LF_FENCE_TEMPLATE_H

#include "access/htup.h"
#include "access/tupdesc.h"
#include "base/resource.h"

typedef struct LfTemplate LfTemplate;

/*
 * Parses text against a table's columns, into the current memory context.
 * Raises 22023 naming the template and what is wrong with it: unbalanced
 * braces, an empty template or name, an unknown, dropped, system or generated
 * column, a type that is not allowed, two columns without text between them,
 * more than LF_RESOURCE_MAX bytes of literal text.
 */
extern LfTemplate *lf_template_parse(const char *text, TupleDesc desc);

/* Attribute numbers that it reads; a constant template has none. */
extern int	lf_template_columns(const LfTemplate *tmpl, AttrNumber *columns, int max);

/*
 * Names the row's resource, for the current database.  False when one of the
 * columns is NULL (*null_column says which) or the name is too long or empty
 * (*null_column = 0).
 */
extern bool lf_template_render(const LfTemplate *tmpl, HeapTuple tuple,
							   TupleDesc desc, LfResource *out,
							   AttrNumber *null_column);

#endif							/* LF_FENCE_TEMPLATE_H */
