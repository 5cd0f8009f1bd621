/*
 * guard_info.h
 *		What a guard's trigger says, parsed once per backend and table.
 */
#ifndef LF_FENCE_GUARD_INFO_H
#define LF_FENCE_GUARD_INFO_H

#include "commands/trigger.h"
#include "fence/guard_mode.h"
#include "fence/protect.h"
#include "fence/template.h"

typedef struct LfGuardInfo
{
	Oid			trigger;		/* hash key */
	Oid			relation;
	bool		valid;
	LfGuardMode mode;
	bool		accept_lapsed;
	bool		free_inserts;
	AttrNumber	token_column;
	LfTemplate *tmpl;
	LfResource *constant;		/* what all rows belong to; NULL: each has its
								 * own, named by these columns */
	AttrNumber *columns;
	int			ncolumns;
	const char *template_text;

	/*
	 * Names of enabled BEFORE ROW triggers that run after ours and could change
	 * what it checked; NULL: none.
	 */
	const char *late_insert;
	const char *late_update;
	const char *late_delete;
	MemoryContext context;
} LfGuardInfo;

/*
 * The caller may keep the pointer for its query; it is rebuilt in place here,
 * so call this at the start of each trigger call.  Raises 55000 when the token
 * column is gone, 22023 when the template fits the table no more.
 */
extern LfGuardInfo *lf_guard_info(Relation relation, const Trigger *trigger,
								  LfGuardInfo *known);

#endif							/* LF_FENCE_GUARD_INFO_H */
