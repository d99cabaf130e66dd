#!/bin/sh
# A queue consumer that is limited by a rule, together with all other consumers. It reads jobs from standard input, one
# per line, and passes each to a command as the last argument:
#
#   make run                                                                        # Tollgate with config/rules, on 8081
#   seq 30 | PATH=$PWD/target/quick:$PATH deploy/queue/consumer.sh echo sending     # ten per second, also from two terminals
#
# The rule (queue=mail) of config/rules/jobs.yaml delays the answer until the job may run, so the consumer waits for
# exactly that time and does not poll. tests/it/recipes.rs tests this file.
set -eu

readonly domain=jobs entry=queue=mail
# Longer than the rule's max_delay: a request whose delay would exceed the caller's timeout is denied.
readonly timeout=35s

# Waits until the job may run.
wait_for_turn() {
    while :; do
        status=0
        tollgate ask --domain "$domain" --timeout "$timeout" "$entry" >/dev/null || status=$?
        case $status in
            0) return ;;
            2) ;; # more jobs are delayed than max_delay allows, or Redis is unavailable
            1) ;; # no answer: `ask` has printed the reason
            *)
                echo "consumer: no limit applies to $entry of the domain $domain: see tollgate explain" >&2
                exit "$status"
                ;;
        esac
        sleep 1
    done
}

while IFS= read -r job; do
    wait_for_turn
    # Keeps the command from reading further jobs.
    "$@" "$job" </dev/null
done
