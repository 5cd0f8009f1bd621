/*
 * launcher.h
 *		The process that starts the databases' workers.
 */
#ifndef LF_WORKER_LAUNCHER_H
#define LF_WORKER_LAUNCHER_H

/* From _PG_init, while shared_preload_libraries is processed. */
extern void lf_launcher_register(void);

/*
 * Is this database named in lease_fence.databases?  Such a worker never
 * retires.  Any process; a setting that cannot be read names nobody.
 */
extern bool lf_launcher_names(const char *database);

extern PGDLLEXPORT void lf_launcher_main(Datum main_arg);

#endif							/* LF_WORKER_LAUNCHER_H */
