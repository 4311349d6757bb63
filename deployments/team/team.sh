#!/bin/sh
# Servers of a team on one Debian machine, without containers: Prefect and MLflow behind nginx, with
# PostgreSQL behind both. docs/guides/team.md lists every command, in order.
#
#   team.sh setup     create system users, folders and databases, and write nginx's configuration
#   team.sh run       run the servers and workers in the foreground, until Ctrl-C or SIGTERM
#   team.sh prefect | mlflow | worker [NUMBER]     run one of them, for systemd
#
# Run it as root. Each server gives up root's rights and becomes a system user of its own, which owns
# one folder below $STATE, so that the operating system refuses every other path. Prefect and MLflow
# log in to PostgreSQL as these system users ("peer"), without passwords.
set -eu

# Programs inherit no variable that this script does not set. Secrets are passed in variables, never
# as arguments, which every user of the machine can read.
if [ -z "${TILEWRIGHT_TEAM_STARTED:-}" ]; then
    exec env -i TILEWRIGHT_TEAM_STARTED=1 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        LANG=C.UTF-8 CONFIG="${TILEWRIGHT_TEAM_CONFIG:-/etc/tilewright/team.conf}" "$0" "$@"
fi

HERE=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
test "$(id -u)" = 0 || { echo "error: run this as root" >&2; exit 1; }
test -r "$CONFIG" || { echo "error: $CONFIG is missing; copy $HERE/team.conf there and edit it" >&2; exit 1; }
# shellcheck disable=SC1090
. "$CONFIG"

# Settings that team.conf usually leaves alone.
: "${ETC:=/etc/tilewright}" "${STATE:=/var/lib/tilewright}" "${RUN:=/run/tilewright}" "${PREFIX:=tilewright}"
: "${PYTHON:=$(dirname -- "$(dirname -- "$HERE")")/.venv/bin/python}" "${CA:=/etc/ssl/certs/ca-certificates.crt}"
: "${USERS:=$ETC/users}" "${SITE:=/etc/nginx/conf.d/tilewright.conf}" "${PREFECT_INTERNAL_PORT:=4201}"
: "${DATABASE_SOCKETS:=/var/run/postgresql}" "${DATABASE_PORT:=5432}"
TOKEN=$ETC/prefect-token WORKER_PASSWORD=$ETC/worker-password

setup() {
    install -d -m 0755 "$ETC" "$STATE"
    for user in prefect mlflow worker; do
        id "$PREFIX-$user" >/dev/null 2>&1 || useradd --system --user-group --no-create-home \
            --home-dir "$STATE/$user" --shell /usr/sbin/nologin "$PREFIX-$user"
        install -d -m 0700 -o "$PREFIX-$user" -g "$PREFIX-$user" "$STATE/$user"
    done
    for name in "$PREFIX-prefect" "$PREFIX-mlflow"; do
        has "SELECT 1 FROM pg_roles WHERE rolname = '$name'" || query "CREATE ROLE \"$name\" LOGIN"
        has "SELECT 1 FROM pg_database WHERE datname = '$name'" || query "CREATE DATABASE \"$name\" OWNER \"$name\""
        query "REVOKE CONNECT ON DATABASE \"$name\" FROM PUBLIC"
    done
    umask 077
    test -s "$TOKEN" || echo "tilewright:$(openssl rand -hex 24)" >"$TOKEN"
    test -s "$WORKER_PASSWORD" || openssl rand -hex 24 >"$WORKER_PASSWORD"
    test -e "$USERS" || : >"$USERS"
    chown root:www-data "$USERS" && chmod 0640 "$USERS"
    htpasswd -i -B "$USERS" worker <"$WORKER_PASSWORD"
    # The configuration contains Prefect's login, so that only root may read it.
    sed -f /dev/stdin "$HERE/nginx.conf.template" >"$SITE" <<END
s|\${NAME}|$NAME|g
s|\${ETC}|$ETC|g
s|\${USERS}|$USERS|g
s|\${UPLOAD_LIMIT}|$UPLOAD_LIMIT|g
s|\${CERTIFICATE}|$CERTIFICATE|g
s|\${CERTIFICATE_KEY}|$CERTIFICATE_KEY|g
s|\${PREFECT_PORT}|$PREFECT_PORT|g
s|\${MLFLOW_PORT}|$MLFLOW_PORT|g
s|\${PREFECT_UPSTREAM}|http://127.0.0.1:$PREFECT_INTERNAL_PORT|g
s|\${MLFLOW_UPSTREAM}|http://unix:$RUN/mlflow/socket:|g
s|\${PREFECT_LOGIN}|$(encoded "$(cat "$TOKEN")")|g
END
}

query() { runuser -u postgres -- psql -qAt -h "$DATABASE_SOCKETS" -p "$DATABASE_PORT" -d postgres -c "$1"; }
has() { test -n "$(query "$1")"; }
encoded() { printf %s "$1" | base64 -w 0; }

# become USER COMMAND…: run a command as a system user, in its own folder, with its own temporary
# files: Prefect's workers write into a folder of a fixed name, which may belong to somebody else.
become() {
    export HOME="$STATE/$1" TMPDIR="$STATE/$1/tmp" DO_NOT_TRACK=true PYTHONDONTWRITEBYTECODE=1
    cd "$HOME"
    user=$PREFIX-$1; shift
    install -d -m 0700 -o "$user" -g "$user" "$TMPDIR"
    exec setpriv --reuid "$user" --regid "$user" --clear-groups --no-new-privs "$@"
}

prefect() {
    export PREFECT_HOME="$STATE/prefect" PREFECT_SERVER_API_AUTH_STRING PREFECT_SERVER_CSRF_PROTECTION_ENABLED=true
    export PREFECT_API_DATABASE_CONNECTION_URL="postgresql+asyncpg://$PREFIX-prefect@/$PREFIX-prefect?host=$DATABASE_SOCKETS&port=$DATABASE_PORT"
    export PREFECT_SERVER_DATABASE_SQLALCHEMY_POOL_SIZE=20 PREFECT_SERVER_DATABASE_SQLALCHEMY_MAX_OVERFLOW=20
    export PREFECT_SERVER_CORS_ALLOWED_ORIGINS="https://$NAME:$PREFECT_PORT" PREFECT_SERVER_UI_API_URL=/api
    export PREFECT_SERVER_ANALYTICS_ENABLED=false PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT=false
    # Prefect prepares its pages at each start, in a folder that it can write
    export PREFECT_SERVER_UI_V2_ENABLED=false PREFECT_SERVER_UI_STATIC_DIRECTORY="$STATE/prefect/pages"
    PREFECT_SERVER_API_AUTH_STRING=$(cat "$TOKEN")
    become prefect "$PYTHON" -P -m prefect server start --host 127.0.0.1 --port "$PREFECT_INTERNAL_PORT"
}

# MLflow has no login of its own, so it listens on a socket in a folder that only nginx may enter.
mlflow() {
    install -d -m 0755 "$RUN"
    install -d -m 0750 -o "$PREFIX-mlflow" -g www-data "$RUN/mlflow"
    export MLFLOW_DISABLE_TELEMETRY=true MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false
    become mlflow "$PYTHON" -P -m mlflow server --workers 2 \
        --uvicorn-opts "--uds $RUN/mlflow/socket --log-level warning" \
        --backend-store-uri "postgresql+psycopg2://$PREFIX-mlflow@/$PREFIX-mlflow?host=$DATABASE_SOCKETS&port=$DATABASE_PORT" \
        --serve-artifacts --artifacts-destination "$STATE/mlflow/artifacts" \
        --allowed-hosts "$NAME:$MLFLOW_PORT" --cors-allowed-origins "https://$NAME:$MLFLOW_PORT"
}

# A worker is a client like any other: it logs in to nginx as the user "worker".
worker() {
    export PREFECT_API_URL="https://$NAME:$PREFECT_PORT/api" PREFECT_API_AUTH_STRING PREFECT_CLIENT_CUSTOM_HEADERS
    export PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED=false PREFECT_API_SSL_CERT_FILE="$CA" REQUESTS_CA_BUNDLE="$CA"
    # a server whose database is away answers 500: clients ask again until it is back
    export PREFECT_CLIENT_RETRY_EXTRA_CODES=500,502,504 PREFECT_CLIENT_MAX_RETRIES=60 MLFLOW_HTTP_REQUEST_MAX_RETRIES=10
    export MLFLOW_TRACKING_URI="https://$NAME:$MLFLOW_PORT" MLFLOW_TRACKING_USERNAME=worker MLFLOW_TRACKING_PASSWORD
    export MLFLOW_DISABLE_TELEMETRY=true PREFECT_HOME="$STATE/worker/prefect-${1:-1}"
    export TILEWRIGHT_HOME="$STATE/worker/home" TILEWRIGHT_OUTPUT_ROOT="$STATE/worker/tuned"
    # all workers share one cache of finished stages
    export PREFECT_LOCAL_STORAGE_PATH="$TILEWRIGHT_HOME/cache"
    PREFECT_API_AUTH_STRING=$(cat "$TOKEN") MLFLOW_TRACKING_PASSWORD=$(cat "$WORKER_PASSWORD")
    PREFECT_CLIENT_CUSTOM_HEADERS="{\"Authorization\": \"Basic $(encoded "worker:$MLFLOW_TRACKING_PASSWORD")\"}"
    become worker "$PYTHON" -P -m prefect worker start --pool tilewright --type process \
        --name "worker-${1:-1}" --limit 1
}

# Start everything, and start again whatever ends by itself.
run() {
    install -d -m 0700 "$STATE/logs"
    keep prefect
    keep mlflow
    for number in $(seq "$WORKERS"); do keep worker "$number"; done
    # shellcheck disable=SC2064 # the processes that run now
    trap "kill $KEEPERS; wait; exit 0" INT TERM
    echo "Prefect  https://$NAME:$PREFECT_PORT"
    echo "MLflow   https://$NAME:$MLFLOW_PORT"
    echo "$WORKERS workers of the pool tilewright; logs in $STATE/logs; Ctrl-C stops all"
    wait
}

keep() {
    (
        # a worker would wait for its runs, which continue later from what they have recorded
        trap '(sleep 10; kill -s KILL -- "-$child") 2>/dev/null & kill -- "-$child"; wait "$child"; exit' TERM
        while :; do
            setsid "$HERE/team.sh" "$@" & child=$!
            wait "$child" || :
            sleep 1
        done
    ) >>"$STATE/logs/$1${2:+-$2}.log" 2>&1 &
    KEEPERS="${KEEPERS:-} $!"
}

case ${1:-} in
    setup | run | prefect | mlflow | worker) "$@" ;;
    *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 1 ;;
esac
