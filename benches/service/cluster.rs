//! A Redis Cluster with several masters and one with a single master: the cost of a decision for the server and the
//! nodes.

use tokio::runtime::{Builder, Runtime};

use crate::cost::{Cost, median};
use crate::load::{Call, RULES, Users, calls};
use crate::rows::{Measured, USERS, closed_loop};
use crate::stage::Stage;
use crate::support::cluster::Cluster;
use crate::support::tollgate::Tollgate;

/// Numbers of masters to compare.
const MASTERS: [u16; 3] = [1, 3, 6];

/// A cluster, and the service that asks it.
struct Side {
    tollgate: Tollgate,
    cluster: Cluster,
}

/// Measures requests with one slot and with two slots, with six masters.
pub fn by_masters(stage: &Stage) -> Vec<Measured> {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let sides = MASTERS.map(|masters| Side::start(stage, &runtime, masters));
    [1, 2].map(|slots| of_slots(stage, &sides, &calls(USERS, slots, Users::Mixed))).into()
}

fn of_slots(stage: &Stage, sides: &[Side; MASTERS.len()], calls: &[Call]) -> Measured {
    let runs: Vec<[Cost; MASTERS.len()]> =
        (0..stage.runs).map(|_| sides.each_ref().map(|side| side.run(stage, calls))).collect();
    let each_us = |side: usize, process: usize| median(runs.iter().map(|run| run[side].each_us(process)).collect());
    let of_side =
        |(side, masters): (usize, u16)| format!("{masters}: {:.1} and {:.1} µs", each_us(side, 0), each_us(side, 1));
    let detail: Vec<String> = MASTERS.into_iter().enumerate().map(of_side).collect();
    let last = &runs[runs.len() - 1];
    let ratio = median(runs.iter().map(|[one, .., six]| six.each_us(0) / one.each_us(0)).collect());
    let detail = format!("server and Redis by masters: {}", detail.join(", "));
    Measured::new(ratio, detail).under(&[("one", &last[0]), ("six", &last[MASTERS.len() - 1])])
}

impl Side {
    fn start(stage: &Stage, runtime: &Runtime, masters: u16) -> Side {
        let cluster = runtime.block_on(Cluster::start(masters, 0));
        cluster.nodes.iter().for_each(|node| stage.place_beside_load(node));
        Side { tollgate: stage.tollgate(RULES, &[&cluster.setting()]), cluster }
    }

    fn run(&self, stage: &Stage, calls: &[Call]) -> Cost {
        let nodes = self.cluster.nodes.iter().map(|node| ("Redis", node.pid()));
        let processes: Vec<_> = std::iter::once(("server", self.tollgate.pid())).chain(nodes).collect();
        closed_loop(stage, self.tollgate.grpc_port, calls, &processes)
    }
}
