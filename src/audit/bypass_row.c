/*
 * bypass_row.c
 *		The audit's rows about writes past the guards.
 *
 * Runs in the backend that writes past them, in its transaction: what it did
 * and the row about it commit together.
 */
#include "postgres.h"

#include "audit/audit.h"
#include "audit/place.h"
#include "base/catalog.h"
#include "base/table.h"
#include "utils/builtins.h"

void
lf_audit_bypassed(const LfRejection *rejection, const char *reason,
				  const char *statement, int64 rows)
{
	LfRecord   *record = palloc0(sizeof(LfRecord));
	Datum		values[LF_AUDIT_COLUMNS];
	bool		nulls[LF_AUDIT_COLUMNS];

	lf_audit_record_fill(record, rejection);
	record->rows = rows;
	strlcpy(record->statement, statement == NULL ? "" : statement, sizeof(record->statement));
	lf_audit_record_values(record, values, nulls);
	values[LF_AUDIT_COLUMN_REASON] = CStringGetTextDatum(reason);
	lf_table_insert(lf_catalog_required()->rejected_writes, LF_AUDIT_COLUMNS, values, nulls);
	pfree(record);
}
