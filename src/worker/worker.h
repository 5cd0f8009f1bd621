/*
 * worker.h
 *		A database's worker.
 */
#ifndef LF_WORKER_WORKER_H
#define LF_WORKER_WORKER_H

/* Started by the launcher: main_arg is a database's OID, or 0 and bgw_extra its name. */
extern PGDLLEXPORT void lf_worker_main(Datum main_arg);

#endif							/* LF_WORKER_WORKER_H */
