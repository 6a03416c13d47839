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

/* a walk through the value */
typedef struct ClaimReader
{
	int			objects;		/* open ones */
	int			arrays;
	const char *field;
	LeaseClaim *claim;			/* of the object being read */
	bool		has_token;
	List	   *claims;
	const char *problem;
} ClaimReader;

/*
 * What the value said when it was last read: a connection shows the same claim
 * for thousands of transactions.
 */
static struct
{
	MemoryContext context;		/* of all that follows */
	char	   *value;			/* NULL: nothing was read to its end */
	List	   *claims;
	const char *problem;
}			known;

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
complain(ClaimReader *reader, const char *problem)
{
	if (reader->problem == NULL)
		reader->problem = problem;
}

static LeaseJsonResult
object_start(void *state)
{
	ClaimReader *reader = state;

	if (reader->objects > 0)
		complain(reader, "A key of a claim in leader_lease.fence has no plain value.");
	reader->objects++;
	reader->claim = palloc0(sizeof(LeaseClaim));
	reader->has_token = false;
	LEASE_JSON_RETURN;
}

static LeaseJsonResult
object_end(void *state)
{
	ClaimReader *reader = state;

	reader->objects--;
	if (reader->claim->role.data == NULL || reader->claim->holder.data == NULL ||
		!reader->has_token)
		complain(reader, "A claim in leader_lease.fence needs the keys role, holder and token.");
	reader->claims = lappend(reader->claims, reader->claim);
	LEASE_JSON_RETURN;
}

static LeaseJsonResult
array_start(void *state)
{
	ClaimReader *reader = state;

	if (reader->objects > 0 || reader->arrays > 0)
		complain(reader, "A key of a claim in leader_lease.fence has no plain value.");
	reader->arrays++;
	LEASE_JSON_RETURN;
}

static LeaseJsonResult
field_start(void *state, char *name, bool isnull)
{
	ClaimReader *reader = state;

	reader->field = name;
	LEASE_JSON_RETURN;
}

static LeaseJsonResult
scalar(void *state, char *token, JsonTokenType type)
{
	ClaimReader *reader = state;
	LeaseName	value = {token, strlen(token)};

	if (reader->objects != 1)
		complain(reader, "leader_lease.fence is neither an object nor an array of objects.");
	else if (strcmp(reader->field, "role") == 0 ||
			 strcmp(reader->field, "holder") == 0)
	{
		LeaseName  *name = reader->field[0] == 'r' ?
			&reader->claim->role : &reader->claim->holder;

		if (type != JSON_TOKEN_STRING || value.len == 0 ||
			value.len > LEASE_NAME_MAX)
			complain(reader, "A role or holder in leader_lease.fence is not a name.");
		if (name->data != NULL)
			complain(reader, "A claim in leader_lease.fence has a key twice.");
		*name = value;
	}
	else if (strcmp(reader->field, "token") == 0)
	{
		if (reader->has_token)
			complain(reader, "A claim in leader_lease.fence has a key twice.");
		reader->claim->token = parse_token(token);
		reader->has_token = true;
		if (reader->claim->token <= 0)
			complain(reader, "A token in leader_lease.fence is not a positive bigint.");
	}
	else
		complain(reader, "A claim in leader_lease.fence has a key other than role, holder and token.");
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
 * Reads the setting's value into what is known.  On error nothing is known.
 */
static void
read_value(const char *value)
{
	ClaimReader reader = {0};
	JsonSemAction actions = {0};
	MemoryContext old;
	char	   *copy;

	known.value = NULL;
	if (known.context == NULL)
		known.context = AllocSetContextCreate(TopMemoryContext,
											  "leader_lease.fence",
											  ALLOCSET_SMALL_SIZES);
	MemoryContextReset(known.context);
	old = MemoryContextSwitchTo(known.context);

	actions.semstate = &reader;
	actions.object_start = object_start;
	actions.object_end = object_end;
	actions.array_start = array_start;
	actions.object_field_start = field_start;
	actions.scalar = scalar;
	copy = pstrdup(value);
	if (too_deep(copy) ||
		pg_parse_json(LEASE_JSON_LEXER(copy, strlen(copy)),
					  &actions) != JSON_SUCCESS)
		reader.problem = "leader_lease.fence is not valid JSON.";

	MemoryContextSwitchTo(old);
	known.claims = reader.claims;
	known.problem = reader.problem;
	known.value = copy;
}

/*
 * Looks in the setting for a claim on one lease.  Any fault anywhere in the
 * value is CLAIM_BAD with the problem in a sentence: half a claim is none.
 * What it returns lives until it is called with another value set.
 */
LeaseClaimFound
lease_claim_find(LeaseName role, LeaseClaim *claim, const char **problem)
{
	bool		found = false;
	ListCell   *cell;

	if (lease_claim == NULL || *lease_claim == '\0')
		return CLAIM_NONE;
	if (known.value == NULL || strcmp(known.value, lease_claim) != 0)
		read_value(lease_claim);

	*problem = known.problem;
	if (known.problem != NULL)
		return CLAIM_BAD;
	foreach(cell, known.claims)
	{
		LeaseClaim *one = lfirst(cell);

		if (!lease_name_equal(one->role, role))
			continue;
		if (found)
		{
			*problem = "leader_lease.fence names the lease twice.";
			return CLAIM_BAD;
		}
		*claim = *one;
		found = true;
	}
	return found ? CLAIM_FOUND : CLAIM_NONE;
}
