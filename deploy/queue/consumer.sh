#!/bin/sh
# A consumer of a queue that is no faster than a rule allows, however many such consumers there are. It reads one job a line from
# standard input and hands each to a command, as its last argument:
#
#   make run                                                                        # Tollgate with config/rules, on 8081
#   seq 30 | PATH=$PWD/target/release:$PATH deploy/queue/consumer.sh echo sending   # ten a second, also from two terminals
#
# The rule (queue=mail) of config/rules/jobs.yaml delays an answer until it is this job's turn, so that the consumer waits for that
# alone and never asks in vain. tests/it/recipes.rs runs this very file.
set -eu

readonly domain=jobs entry=queue=mail
# Longer than the rule's max_delay: a request that would be delayed for longer than its caller waits is denied.
readonly timeout=35s

# Waits until it is this job's turn.
wait_for_turn() {
    while :; do
        status=0
        tollgate ask --domain "$domain" --timeout "$timeout" "$entry" >/dev/null || status=$?
        case $status in
            0) return ;;
            2) ;; # more jobs wait already than max_delay lets, or Redis is unavailable
            1) ;; # no answer: `ask` has said why
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
    # The command shall not read the jobs that wait.
    "$@" "$job" </dev/null
done
