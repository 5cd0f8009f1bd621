/*
 * statements.c
 *		So many connections, each of which runs one statement over and over.
 *
 *		statements CONNINFO CONNECTIONS SECONDS SQLSTATE STATEMENT [BEFORE...]
 *
 * Every execution must end with SQLSTATE, 00000 for none: pgbench ends a client
 * at its first error, and here errors are what is counted.  BEFORE is run once
 * by each connection, before the time begins.  In all of them $1 is the
 * connection's number, and $2 what the first BEFORE answered, both bigint.
 *
 * Prints how many executions there were and how many seconds they took.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <libpq-fe.h>

#define OID_INT8 20
#define MAX_CONNECTIONS 256

typedef struct Client
{
	PGconn	   *connection;
	char		number[16];
	char		answer[32];
	long		executions;
	pthread_t	thread;
} Client;

static Client clients[MAX_CONNECTIONS];
static const char *expected;
static double deadline;
static pthread_barrier_t begin;

static double
now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static void
fail(const char *what, const char *message)
{
	fprintf(stderr, "statements: %s: %s\n", what, message);
	exit(1);
}

static PGresult *
execute(Client *client, const char *prepared)
{
	const char *values[2] = {client->number, client->answer};

	return PQexecPrepared(client->connection, prepared, 2, values, NULL, NULL, 0);
}

static void
prepare(Client *client, const char *name, const char *statement)
{
	const Oid	types[2] = {OID_INT8, OID_INT8};
	PGresult   *result = PQprepare(client->connection, name, statement, 2, types);

	if (PQresultStatus(result) != PGRES_COMMAND_OK)
		fail(statement, PQresultErrorMessage(result));
	PQclear(result);
}

static void
run_before(Client *client, const char *statement)
{
	PGresult   *result;

	prepare(client, "", statement);
	result = execute(client, "");
	if (PQresultStatus(result) != PGRES_TUPLES_OK && PQresultStatus(result) != PGRES_COMMAND_OK)
		fail(statement, PQresultErrorMessage(result));
	if (strcmp(client->answer, "0") == 0 && PQntuples(result) == 1)
		snprintf(client->answer, sizeof(client->answer), "%s", PQgetvalue(result, 0, 0));
	PQclear(result);
}

static int
is_expected(const PGresult *result)
{
	const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);

	return strcmp(state != NULL ? state : "00000", expected) == 0;
}

static void *
run(void *argument)
{
	Client	   *client = argument;

	pthread_barrier_wait(&begin);
	while (now() < deadline)
	{
		PGresult   *result = execute(client, "statement");

		if (!is_expected(result))
			fail("another end than expected", PQresultErrorMessage(result));
		PQclear(result);
		client->executions++;
	}
	return NULL;
}

int
main(int argc, char **argv)
{
	int			count;
	long		executions = 0;
	double		start;

	if (argc < 6 || (count = atoi(argv[2])) < 1 || count > MAX_CONNECTIONS)
		fail("usage", "statements CONNINFO CONNECTIONS SECONDS SQLSTATE STATEMENT [BEFORE...]");
	expected = argv[4];
	for (int i = 0; i < count; i++)
	{
		Client	   *client = &clients[i];

		client->connection = PQconnectdb(argv[1]);
		if (PQstatus(client->connection) != CONNECTION_OK)
			fail("connect", PQerrorMessage(client->connection));
		snprintf(client->number, sizeof(client->number), "%d", i);
		strcpy(client->answer, "0");
		for (int before = 6; before < argc; before++)
			run_before(client, argv[before]);
		prepare(client, "statement", argv[5]);
	}

	pthread_barrier_init(&begin, NULL, count + 1);
	for (int i = 0; i < count; i++)
		pthread_create(&clients[i].thread, NULL, run, &clients[i]);
	start = now();
	deadline = start + atof(argv[3]);
	pthread_barrier_wait(&begin);
	for (int i = 0; i < count; i++)
	{
		pthread_join(clients[i].thread, NULL);
		executions += clients[i].executions;
	}
	printf("%ld %.6f\n", executions, now() - start);
	for (int i = 0; i < count; i++)
		PQfinish(clients[i].connection);
	return 0;
}
