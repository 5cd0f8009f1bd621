/*
 * redis_tls.c
 *		TLS on a connection to Redis, where hiredis has it (1.x).
 *
 * Runs in workers.  hiredis does not compare the certificate with the host, so
 * the session is made here and only driven by hiredis.  Without TLS in the
 * library CREATE SERVER refuses the option: what comes here all the same (a
 * server that another build had made) is refused, never sent in plain text.
 */
#include "postgres.h"

#include "coordinator/redis_tls.h"

#ifdef LF_TLS

#include <arpa/inet.h>
#include <hiredis/hiredis_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

static const char *
last_problem(const char *what)
{
	static char problem[256];
	char		reason[160] = "no reason given";
	unsigned long code = ERR_get_error();

	if (code != 0)
		ERR_error_string_n(code, reason, sizeof(reason));
	ERR_clear_error();
	snprintf(problem, sizeof(problem), "%s: %s", what, reason);
	return problem;
}

static bool
is_address(const char *host)
{
	unsigned char buffer[sizeof(struct in6_addr)];

	return inet_pton(AF_INET, host, buffer) == 1 || inet_pton(AF_INET6, host, buffer) == 1;
}

/* Whom the certificate must be for. */
static bool
expect_host(SSL *ssl, const char *host)
{
	X509_VERIFY_PARAM *param = SSL_get0_param(ssl);

	if (is_address(host))
		return X509_VERIFY_PARAM_set1_ip_asc(param, host) == 1;
	return X509_VERIFY_PARAM_set1_host(param, host, 0) == 1 &&
		SSL_set_tlsext_host_name(ssl, host) == 1;
}

static SSL_CTX *
make_context(const LfRedisOptions *options, const char **problem)
{
	SSL_CTX    *context = SSL_CTX_new(TLS_client_method());
	bool		loaded;

	if (context == NULL)
	{
		*problem = last_problem("could not begin TLS");
		return NULL;
	}
	SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
	SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
	SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE |
					 SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	if (options->ca_file[0] != '\0')
		loaded = SSL_CTX_load_verify_locations(context, options->ca_file, NULL) == 1;
	else
		loaded = SSL_CTX_set_default_verify_paths(context) == 1;
	if (!loaded)
	{
		*problem = last_problem("could not load the certificate authorities");
		SSL_CTX_free(context);
		return NULL;
	}
	return context;
}

const char *
lf_redis_tls_start(redisContext *context, const LfRedisOptions *options, void **session)
{
	const char *problem = NULL;
	SSL_CTX    *ssl_context;
	SSL		   *ssl;

	lf_redis_tls_forget_errors();
	ssl_context = make_context(options, &problem);
	if (ssl_context == NULL)
		return problem;
	ssl = SSL_new(ssl_context);
	SSL_CTX_free(ssl_context);	/* the session keeps it */
	if (ssl == NULL || !expect_host(ssl, options->host))
	{
		problem = last_problem("could not begin TLS");
		SSL_free(ssl);
		return problem;
	}
	/* on success, and on failure after it was taken over, hiredis frees it */
	if (redisInitiateSSL(context, ssl) != REDIS_OK)
		return context->errstr[0] != '\0' ? context->errstr : "could not begin TLS";
	*session = ssl;
	return NULL;
}

void
lf_redis_tls_forget_errors(void)
{
	ERR_clear_error();
}

const char *
lf_redis_tls_problem(void *session)
{
	long		result = SSL_get_verify_result(session);

	if (result != X509_V_OK)
	{
		static char problem[256];

		snprintf(problem, sizeof(problem), "the server's certificate is not trusted: %s",
				 X509_verify_cert_error_string(result));
		return problem;
	}
	return ERR_peek_error() == 0 ? NULL : last_problem("TLS failed");
}

#else

const char *
lf_redis_tls_start(redisContext *context, const LfRedisOptions *options, void **session)
{
	return "this build of lease_fence has no TLS";
}

void
lf_redis_tls_forget_errors(void)
{
}

const char *
lf_redis_tls_problem(void *session)
{
	return NULL;
}

#endif
