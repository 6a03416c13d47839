/*-------------------------------------------------------------------------
 *
 * claim.c
 *	  The setting leader_lease.fence: a claim for applications that cannot
 *	  change their statements.
 *
 * The value is {"role": ..., "holder": ..., "token": ...} or an array of such
 * objects.  It is parsed by the server's JSON parser, with nothing thrown:
 * the setting's check may run where an error would keep the library from
 * loading.  A token may be a number or a string of digits, since some
 * languages have no 64-bit number in JSON.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/jsonapi.h"
#include "mb/pg_wchar.h"
#include "utils/memutils.h"

#include "leader_lease.h"

/* a walk through the value, in search of one lease's claim */
typedef struct ClaimSearch
{
	LeaseName	role;			/* wanted */
	JsonLexContext *lexer;
	int			objects;		/* open ones */
	int			arrays;
	const char *field;
	LeaseClaim	claim;			/* of the object being read */
	bool		has_token;
	LeaseClaim	found;
	bool		have_found;
	const char *problem;
} ClaimSearch;

/*
 * The parser recurses, and its check for stack depth would throw.  A claim is
 * an array of objects of scalars, so deeper is refused before parsing.
 */
static bool
too_deep(const char *value)
{
	bool		in_string = false;
	int			depth = 0;

	for (const char *p = value; *p; p++)
	{
		if (in_string)
		{
			if (*p == '\\' && p[1] != '\0')
				p++;
			else if (*p == '"')
				in_string = false;
		}
		else if (*p == '"')
			in_string = true;
		else if (*p == '[' || *p == '{')
		{
			if (++depth > 2)
				return true;
		}
		else if (*p == ']' || *p == '}')
			depth--;
	}
	return false;
}

/*
 * A string of digits as a token; 0, which is nobody's, where it is none.
 */
static int64
parse_token(const char *digits)
{
	char	   *end;
	long long	token;

	if (*digits < '0' || *digits > '9')
		return 0;
	errno = 0;
	token = strtoll(digits, &end, 10);
	if (errno != 0 || *end != '\0')
		return 0;
	return token;
}

/*
 * Notes what is wrong with the value.  The first fault is the one to tell: the
 * others may follow from it.
 */
static void
complain(ClaimSearch *search, const char *problem)
{
	if (search->problem == NULL)
		search->problem = problem;
}

static LeaseJsonResult
object_start(void *state)
{
	ClaimSearch *search = state;

	if (search->objects > 0)
		complain(search, "A key of a claim in leader_lease.fence has no plain value.");
	search->objects++;
	memset(&search->claim, 0, sizeof(search->claim));
	search->has_token = false;
	LEASE_JSON_RETURN;
}

static LeaseJsonResult
object_end(void *state)
{
	ClaimSearch *search = state;

	search->objects--;
	if (search->claim.role.data == NULL || search->claim.holder.data == NULL ||
		!search->has_token)
		complain(search, "A claim in leader_lease.fence needs the keys role, holder and token.");
	else if (lease_name_equal(search->claim.role, search->role))
	{
		if (search->have_found)
			complain(search, "leader_lease.fence names the lease twice.");
		search->found = search->claim;
		search->have_found = true;
	}
	LEASE_JSON_RETURN;
}

static LeaseJsonResult
array_start(void *state)
{
	ClaimSearch *search = state;

	if (search->objects > 0 || search->arrays > 0)
		complain(search, "A key of a claim in leader_lease.fence has no plain value.");
	search->arrays++;
	LEASE_JSON_RETURN;
}

static LeaseJsonResult
field_start(void *state, char *name, bool isnull)
{
	ClaimSearch *search = state;

	search->field = name;
	LEASE_JSON_RETURN;
}

static LeaseJsonResult
scalar(void *state, char *token, JsonTokenType type)
{
	ClaimSearch *search = state;
	LeaseName	value = {token, strlen(token)};

	if (search->objects != 1)
		complain(search, "leader_lease.fence is neither an object nor an array of objects.");
	else if (strcmp(search->field, "role") == 0 ||
			 strcmp(search->field, "holder") == 0)
	{
		LeaseName  *name = search->field[0] == 'r' ?
			&search->claim.role : &search->claim.holder;

		if (type != JSON_TOKEN_STRING || value.len == 0 ||
			value.len > LEASE_NAME_MAX)
			complain(search, "A role or holder in leader_lease.fence is not a name.");
		if (name->data != NULL)
			complain(search, "A claim in leader_lease.fence has a key twice.");
		*name = value;
	}
	else if (strcmp(search->field, "token") == 0)
	{
		if (search->has_token)
			complain(search, "A claim in leader_lease.fence has a key twice.");
		search->claim.token = parse_token(token);
		search->has_token = true;
		if (search->claim.token <= 0)
			complain(search, "A token in leader_lease.fence is not a positive bigint.");
	}
	else
		complain(search, "A claim in leader_lease.fence has a key other than role, holder and token.");
	LEASE_JSON_RETURN;
}

/*
 * Is the value empty, or JSON that is not too deep?  Throws nothing, keeps
 * nothing.
 */
bool
lease_claim_syntax(const char *value)
{
	MemoryContext context;
	MemoryContext old;
	JsonParseErrorType error;

	if (value == NULL || *value == '\0')
		return true;
	if (too_deep(value))
		return false;

	context = AllocSetContextCreate(CurrentMemoryContext,
									"leader_lease.fence",
									ALLOCSET_SMALL_SIZES);
	old = MemoryContextSwitchTo(context);
	error = pg_parse_json(LEASE_JSON_LEXER((char *) value, strlen(value)),
						  &nullSemAction);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	return error == JSON_SUCCESS;
}

/*
 * Looks in the setting for a claim on one lease.  Any fault anywhere in the
 * value is CLAIM_BAD with the problem in a sentence: half a claim is none.
 * What it returns lives in the current memory context.
 */
LeaseClaimFound
lease_claim_find(LeaseName role, LeaseClaim *claim, const char **problem)
{
	ClaimSearch search = {role};
	JsonSemAction actions = {0};

	if (lease_claim == NULL || *lease_claim == '\0')
		return CLAIM_NONE;

	search.lexer = LEASE_JSON_LEXER(pstrdup(lease_claim), strlen(lease_claim));
	actions.semstate = &search;
	actions.object_start = object_start;
	actions.object_end = object_end;
	actions.array_start = array_start;
	actions.object_field_start = field_start;
	actions.scalar = scalar;
	if (too_deep(lease_claim) ||
		pg_parse_json(search.lexer, &actions) != JSON_SUCCESS)
		search.problem = "leader_lease.fence is not valid JSON.";

	*problem = search.problem;
	if (search.problem != NULL)
		return CLAIM_BAD;
	*claim = search.found;
	return search.have_found ? CLAIM_FOUND : CLAIM_NONE;
}
