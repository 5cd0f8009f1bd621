/*
 * token_list.c
 *		The setting lease_fence.token.
 */
#include "fence/present.c"

#include "stubs.h"

static void
check_count(const TokenSetting *setting, const char *text)
{
	int			commas = 0;

	for (; *text != '\0'; text++)
		commas += *text == ',';
	FUZZ_CHECK(setting->count <= SETTING_MAX_TOKENS);
	FUZZ_CHECK(setting->count == commas + 1 || (setting->count == 0 && commas == 0));
}

/* Written as we understood it, it must be understood as the same. */
static void
check_same(const TokenSetting *setting)
{
	char	   *text = palloc(setting->count * 21 + 1);
	char	   *end = text;
	int64	   *again = palloc(Max(setting->count, 1) * sizeof(int64));

	*end = '\0';
	for (int i = 0; i < setting->count; i++)
	{
		FUZZ_CHECK(setting->tokens[i] > 0);
		end += pg_snprintf(end, 22, "%s%lld", i == 0 ? "" : ",",
						   (long long) setting->tokens[i]);
	}
	FUZZ_CHECK(parse_tokens(text, again) == setting->count);
	FUZZ_CHECK(memcmp(again, setting->tokens, setting->count * sizeof(int64)) == 0);
}

int
LLVMFuzzerTestOneInput(const uint8 *data, size_t size)
{
	char	   *text = fuzz_text(data, size);
	void	   *extra = NULL;

	if (check_token_setting(&text, &extra, PGC_S_SESSION))
	{
		check_count(extra, text);
		check_same(extra);
		free(extra);
	}
	fuzz_forget();
	return 0;
}
