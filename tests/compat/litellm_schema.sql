-- The tables of LiteLLM's proxy from which `dragoman import litellm --database` reads, as PostgreSQL shows them after
-- the 220 migrations of litellm-proxy-extras 0.4.110 (2026-11-19), without indexes, foreign keys and the other tables.
CREATE TABLE "LiteLLM_AccessGroupTable" (
    access_group_id text NOT NULL, access_group_name text NOT NULL, description text,
    access_mcp_server_ids text[] DEFAULT ARRAY[]::text[], access_agent_ids text[] DEFAULT ARRAY[]::text[],
    assigned_team_ids text[] DEFAULT ARRAY[]::text[], assigned_key_ids text[] DEFAULT ARRAY[]::text[],
    created_at timestamp(3) without time zone DEFAULT CURRENT_TIMESTAMP NOT NULL, created_by text,
    updated_at timestamp(3) without time zone DEFAULT CURRENT_TIMESTAMP NOT NULL, updated_by text,
    access_model_names text[] DEFAULT ARRAY[]::text[], mcp_tool_permissions jsonb,
    access_skill_names text[] DEFAULT ARRAY[]::text[]
);
CREATE TABLE "LiteLLM_BudgetTable" (
    budget_id text NOT NULL, max_budget double precision, soft_budget double precision,
    max_parallel_requests integer, tpm_limit bigint, rpm_limit bigint, model_max_budget jsonb,
    budget_duration text, budget_reset_at timestamp(3) without time zone,
    created_at timestamp(3) without time zone DEFAULT CURRENT_TIMESTAMP NOT NULL, created_by text NOT NULL,
    updated_at timestamp(3) without time zone DEFAULT CURRENT_TIMESTAMP NOT NULL, updated_by text NOT NULL,
    allowed_models text[] DEFAULT ARRAY[]::text[], tpd_limit bigint, temp_budget_increase double precision,
    temp_budget_expiry timestamp(3) without time zone
);
CREATE TABLE "LiteLLM_DailyTeamSpend" (
    id text NOT NULL, team_id text, date text NOT NULL, api_key text NOT NULL, model text, model_group text,
    custom_llm_provider text, prompt_tokens bigint DEFAULT 0 NOT NULL, completion_tokens bigint DEFAULT 0 NOT NULL,
    spend double precision DEFAULT 0.0 NOT NULL, api_requests bigint DEFAULT 0 NOT NULL,
    successful_requests bigint DEFAULT 0 NOT NULL, failed_requests bigint DEFAULT 0 NOT NULL,
    created_at timestamp(3) without time zone DEFAULT CURRENT_TIMESTAMP NOT NULL,
    updated_at timestamp(3) without time zone NOT NULL, cache_creation_input_tokens bigint DEFAULT 0 NOT NULL,
    cache_read_input_tokens bigint DEFAULT 0 NOT NULL, mcp_namespaced_tool_name text, endpoint text,
    ptu_flat_cost double precision DEFAULT 0.0 NOT NULL, compression_saved_tokens bigint DEFAULT 0 NOT NULL,
    compression_savings_spend double precision DEFAULT 0.0 NOT NULL,
    prompt_caching_savings_spend double precision DEFAULT 0.0 NOT NULL,
    autorouter_savings_spend double precision DEFAULT 0.0 NOT NULL,
    gateway_injected_caching_savings_spend double precision DEFAULT 0.0 NOT NULL,
    total_response_time_ms bigint DEFAULT 0 NOT NULL, timed_requests bigint DEFAULT 0 NOT NULL
);
CREATE TABLE "LiteLLM_DailyUserSpend" (
    id text NOT NULL, user_id text, date text NOT NULL, api_key text NOT NULL, model text, model_group text,
    custom_llm_provider text, prompt_tokens bigint DEFAULT 0 NOT NULL, completion_tokens bigint DEFAULT 0 NOT NULL,
    spend double precision DEFAULT 0.0 NOT NULL,
    created_at timestamp(3) without time zone DEFAULT CURRENT_TIMESTAMP NOT NULL,
    updated_at timestamp(3) without time zone NOT NULL, api_requests bigint DEFAULT 0 NOT NULL,
    failed_requests bigint DEFAULT 0 NOT NULL, successful_requests bigint DEFAULT 0 NOT NULL,
    cache_creation_input_tokens bigint DEFAULT 0 NOT NULL, cache_read_input_tokens bigint DEFAULT 0 NOT NULL,
    mcp_namespaced_tool_name text, endpoint text, compression_saved_tokens bigint DEFAULT 0 NOT NULL,
    compression_savings_spend double precision DEFAULT 0.0 NOT NULL,
    prompt_caching_savings_spend double precision DEFAULT 0.0 NOT NULL,
    autorouter_savings_spend double precision DEFAULT 0.0 NOT NULL,
    gateway_injected_caching_savings_spend double precision DEFAULT 0.0 NOT NULL,
    total_response_time_ms bigint DEFAULT 0 NOT NULL, timed_requests bigint DEFAULT 0 NOT NULL
);
CREATE TABLE "LiteLLM_DeletedVerificationToken" (
    id text NOT NULL, token text NOT NULL, key_name text, key_alias text,
    soft_budget_cooldown boolean DEFAULT false NOT NULL, spend double precision DEFAULT 0.0 NOT NULL,
    expires timestamp(3) without time zone, models text[], aliases jsonb DEFAULT '{}'::jsonb NOT NULL,
    config jsonb DEFAULT '{}'::jsonb NOT NULL, user_id text, team_id text,
    permissions jsonb DEFAULT '{}'::jsonb NOT NULL, max_parallel_requests integer,
    metadata jsonb DEFAULT '{}'::jsonb NOT NULL, blocked boolean, tpm_limit bigint, rpm_limit bigint,
    max_budget double precision, budget_duration text, budget_reset_at timestamp(3) without time zone,
    allowed_cache_controls text[] DEFAULT ARRAY[]::text[], allowed_routes text[] DEFAULT ARRAY[]::text[],
    model_spend jsonb DEFAULT '{}'::jsonb NOT NULL, model_max_budget jsonb DEFAULT '{}'::jsonb NOT NULL,
    budget_id text, organization_id text, object_permission_id text, created_at timestamp(3) without time zone,
    created_by text, updated_at timestamp(3) without time zone, updated_by text, rotation_count integer DEFAULT 0,
    auto_rotate boolean DEFAULT false, rotation_interval text, last_rotation_at timestamp(3) without time zone,
    key_rotation_at timestamp(3) without time zone,
    deleted_at timestamp(3) without time zone DEFAULT CURRENT_TIMESTAMP NOT NULL, deleted_by text,
    deleted_by_api_key text, litellm_changed_by text, router_settings jsonb DEFAULT '{}'::jsonb,
    policies text[] DEFAULT ARRAY[]::text[], access_group_ids text[] DEFAULT ARRAY[]::text[],
    last_active timestamp(3) without time zone, project_id text, agent_id text,
    budget_fallbacks jsonb DEFAULT '{}'::jsonb NOT NULL, key_type text,
    settings_updated_at timestamp(3) without time zone, tpd_limit bigint,
    total_spend double precision DEFAULT 0.0 NOT NULL
);
CREATE TABLE "LiteLLM_DeprecatedVerificationToken" (
    id text NOT NULL, token text NOT NULL, active_token_id text NOT NULL,
    revoke_at timestamp(3) without time zone NOT NULL,
    created_at timestamp(3) without time zone DEFAULT CURRENT_TIMESTAMP NOT NULL
);
CREATE TABLE "LiteLLM_EndUserTable" (
    user_id text NOT NULL, alias text, spend double precision DEFAULT 0.0 NOT NULL, allowed_model_region text,
    default_model text, budget_id text, blocked boolean DEFAULT false NOT NULL, object_permission_id text,
    models text[] DEFAULT ARRAY[]::text[]
);
CREATE TABLE "LiteLLM_ModelAccessGroupBudgetTable" (
    access_group_name text NOT NULL, spend double precision DEFAULT 0.0 NOT NULL, budget_id text,
    created_at timestamp(3) without time zone DEFAULT CURRENT_TIMESTAMP NOT NULL, created_by text,
    updated_at timestamp(3) without time zone DEFAULT CURRENT_TIMESTAMP NOT NULL, updated_by text
);
CREATE TABLE "LiteLLM_OrganizationTable" (
    organization_id text NOT NULL, organization_alias text NOT NULL, budget_id text NOT NULL,
    metadata jsonb DEFAULT '{}'::jsonb NOT NULL, models text[], spend double precision DEFAULT 0.0 NOT NULL,
    model_spend jsonb DEFAULT '{}'::jsonb NOT NULL,
    created_at timestamp(3) without time zone DEFAULT CURRENT_TIMESTAMP NOT NULL, created_by text NOT NULL,
    updated_at timestamp(3) without time zone DEFAULT CURRENT_TIMESTAMP NOT NULL, updated_by text NOT NULL,
    object_permission_id text
);
CREATE TABLE "LiteLLM_ProjectTable" (
    project_id text NOT NULL, project_alias text, team_id text, budget_id text,
    metadata jsonb DEFAULT '{}'::jsonb NOT NULL, models text[], spend double precision DEFAULT 0.0 NOT NULL,
    model_spend jsonb DEFAULT '{}'::jsonb NOT NULL, blocked boolean DEFAULT false NOT NULL,
    object_permission_id text, created_at timestamp(3) without time zone DEFAULT CURRENT_TIMESTAMP NOT NULL,
    created_by text NOT NULL, updated_at timestamp(3) without time zone DEFAULT CURRENT_TIMESTAMP NOT NULL,
    updated_by text NOT NULL, description text, model_rpm_limit jsonb DEFAULT '{}'::jsonb NOT NULL,
    model_tpm_limit jsonb DEFAULT '{}'::jsonb NOT NULL
);
CREATE TABLE "LiteLLM_ProxyModelTable" (
    model_id text NOT NULL, model_name text NOT NULL, litellm_params jsonb NOT NULL, model_info jsonb,
    created_at timestamp(3) without time zone DEFAULT CURRENT_TIMESTAMP NOT NULL, created_by text NOT NULL,
    updated_at timestamp(3) without time zone DEFAULT CURRENT_TIMESTAMP NOT NULL, updated_by text NOT NULL,
    blocked boolean DEFAULT false NOT NULL
);
CREATE TABLE "LiteLLM_SpendLogs" (
    request_id text NOT NULL, call_type text NOT NULL, api_key text DEFAULT ''::text NOT NULL,
    spend double precision DEFAULT 0.0 NOT NULL, total_tokens integer DEFAULT 0 NOT NULL,
    prompt_tokens integer DEFAULT 0 NOT NULL, completion_tokens integer DEFAULT 0 NOT NULL,
    "startTime" timestamp(3) without time zone NOT NULL, "endTime" timestamp(3) without time zone NOT NULL,
    "completionStartTime" timestamp(3) without time zone, model text DEFAULT ''::text NOT NULL,
    model_id text DEFAULT ''::text, model_group text DEFAULT ''::text, custom_llm_provider text DEFAULT ''::text,
    api_base text DEFAULT ''::text, "user" text DEFAULT ''::text, metadata jsonb DEFAULT '{}'::jsonb,
    cache_hit text DEFAULT ''::text, cache_key text DEFAULT ''::text, request_tags jsonb DEFAULT '[]'::jsonb,
    team_id text, end_user text, requester_ip_address text, messages jsonb DEFAULT '{}'::jsonb,
    response jsonb DEFAULT '{}'::jsonb, proxy_server_request jsonb DEFAULT '{}'::jsonb, session_id text,
    status text, mcp_namespaced_tool_name text, organization_id text, agent_id text, request_duration_ms integer,
    created_at timestamp(3) without time zone DEFAULT CURRENT_TIMESTAMP NOT NULL,
    updated_at timestamp(3) without time zone DEFAULT CURRENT_TIMESTAMP NOT NULL, litellm_call_id text,
    billing_agent_id text
);
CREATE TABLE "LiteLLM_TagTable" (
    tag_name text NOT NULL, description text, models text[], model_info jsonb,
    spend double precision DEFAULT 0.0 NOT NULL, budget_id text,
    created_at timestamp(3) without time zone DEFAULT CURRENT_TIMESTAMP NOT NULL, created_by text,
    updated_at timestamp(3) without time zone DEFAULT CURRENT_TIMESTAMP NOT NULL
);
CREATE TABLE "LiteLLM_TeamMembership" (
    user_id text NOT NULL, team_id text NOT NULL, spend double precision DEFAULT 0.0 NOT NULL, budget_id text,
    total_spend double precision DEFAULT 0.0 NOT NULL
);
CREATE TABLE "LiteLLM_TeamTable" (
    team_id text NOT NULL, team_alias text, organization_id text, admins text[], members text[],
    members_with_roles jsonb DEFAULT '{}'::jsonb NOT NULL, metadata jsonb DEFAULT '{}'::jsonb NOT NULL,
    max_budget double precision, spend double precision DEFAULT 0.0 NOT NULL, models text[],
    max_parallel_requests integer, tpm_limit bigint, rpm_limit bigint, budget_duration text,
    budget_reset_at timestamp(3) without time zone, blocked boolean DEFAULT false NOT NULL,
    created_at timestamp(3) without time zone DEFAULT CURRENT_TIMESTAMP NOT NULL,
    updated_at timestamp(3) without time zone DEFAULT CURRENT_TIMESTAMP NOT NULL,
    model_spend jsonb DEFAULT '{}'::jsonb NOT NULL, model_max_budget jsonb DEFAULT '{}'::jsonb NOT NULL,
    model_id integer, team_member_permissions text[] DEFAULT ARRAY[]::text[], object_permission_id text,
    router_settings jsonb DEFAULT '{}'::jsonb, policies text[] DEFAULT ARRAY[]::text[],
    allow_team_guardrail_config boolean DEFAULT false NOT NULL, soft_budget double precision,
    access_group_ids text[] DEFAULT ARRAY[]::text[], budget_limits jsonb,
    default_team_member_models text[] DEFAULT ARRAY[]::text[], tpd_limit bigint
);
CREATE TABLE "LiteLLM_UserTable" (
    user_id text NOT NULL, user_alias text, team_id text, sso_user_id text, organization_id text, password text,
    teams text[] DEFAULT ARRAY[]::text[], user_role text, max_budget double precision,
    spend double precision DEFAULT 0.0 NOT NULL, user_email text, models text[],
    metadata jsonb DEFAULT '{}'::jsonb NOT NULL, max_parallel_requests integer, tpm_limit bigint, rpm_limit bigint,
    budget_duration text, budget_reset_at timestamp(3) without time zone,
    allowed_cache_controls text[] DEFAULT ARRAY[]::text[], model_spend jsonb DEFAULT '{}'::jsonb NOT NULL,
    model_max_budget jsonb DEFAULT '{}'::jsonb NOT NULL,
    created_at timestamp(3) without time zone DEFAULT CURRENT_TIMESTAMP,
    updated_at timestamp(3) without time zone DEFAULT CURRENT_TIMESTAMP, object_permission_id text,
    policies text[] DEFAULT ARRAY[]::text[], password_reset_required boolean,
    last_breach_check_at timestamp(3) without time zone
);
CREATE TABLE "LiteLLM_VerificationToken" (
    token text NOT NULL, key_name text, key_alias text, soft_budget_cooldown boolean DEFAULT false NOT NULL,
    spend double precision DEFAULT 0.0 NOT NULL, expires timestamp(3) without time zone, models text[],
    aliases jsonb DEFAULT '{}'::jsonb NOT NULL, config jsonb DEFAULT '{}'::jsonb NOT NULL, user_id text,
    team_id text, permissions jsonb DEFAULT '{}'::jsonb NOT NULL, max_parallel_requests integer,
    metadata jsonb DEFAULT '{}'::jsonb NOT NULL, blocked boolean, tpm_limit bigint, rpm_limit bigint,
    max_budget double precision, budget_duration text, budget_reset_at timestamp(3) without time zone,
    allowed_cache_controls text[] DEFAULT ARRAY[]::text[], model_spend jsonb DEFAULT '{}'::jsonb NOT NULL,
    model_max_budget jsonb DEFAULT '{}'::jsonb NOT NULL, budget_id text, organization_id text,
    created_at timestamp(3) without time zone DEFAULT CURRENT_TIMESTAMP, created_by text,
    updated_at timestamp(3) without time zone DEFAULT CURRENT_TIMESTAMP, updated_by text,
    allowed_routes text[] DEFAULT ARRAY[]::text[], object_permission_id text, auto_rotate boolean DEFAULT false,
    key_rotation_at timestamp(3) without time zone, last_rotation_at timestamp(3) without time zone,
    rotation_count integer DEFAULT 0, rotation_interval text, project_id text,
    router_settings jsonb DEFAULT '{}'::jsonb, policies text[] DEFAULT ARRAY[]::text[],
    access_group_ids text[] DEFAULT ARRAY[]::text[], last_active timestamp(3) without time zone, agent_id text,
    budget_limits jsonb, budget_fallbacks jsonb DEFAULT '{}'::jsonb NOT NULL, key_type text,
    settings_updated_at timestamp(3) without time zone, tpd_limit bigint,
    total_spend double precision DEFAULT 0.0 NOT NULL
);
