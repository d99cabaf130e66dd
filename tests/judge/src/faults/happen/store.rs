//! Faults of a store, and of the connections to it.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use rustix::process::Signal;
use tokio::time::Instant;

use super::super::fault::Fault;
use super::super::proxy::Mode;
use super::super::redis_cli::ask;
use super::super::running::Running;
use super::super::shares;
use super::super::system::Programs;

/// Writes 200 kB under names of a number.
const FILL: &str = "for i = 1, 50 do redis.call('SET', 'filler:' .. ARGV[1] .. ':' .. i, string.rep('x', 4096)) end";

pub(super) async fn happen(fault: Fault, running: &mut Running, programs: &Programs) -> anyhow::Result<()> {
    let pause = tokio::time::sleep(fault.lasts());
    let Running { stores, proxies, .. } = &mut *running;
    match fault {
        Fault::StoreKilled | Fault::StoreKilledPersistent => {
            stores[0].kill()?;
            pause.await;
            stores[0].start_again()
        }
        Fault::StoreStoppedShortly | Fault::StoreStopped | Fault::StoreStoppedLong => {
            stores[0].signal(Signal::STOP)?;
            pause.await;
            stores[0].signal(Signal::CONT)
        }
        Fault::RepliesLost | Fault::RepliesLate | Fault::HalfOpen => {
            let mode = match fault {
                Fault::RepliesLost => Mode::LoseReplies,
                Fault::RepliesLate => Mode::Delay,
                _ => Mode::HalfOpen,
            };
            proxies.iter().for_each(|proxy| proxy.set(mode));
            pause.await;
            proxies.iter().for_each(|proxy| proxy.set(Mode::Forward));
            Ok(())
        }
        Fault::OneWithoutStore => {
            proxies[0].set(Mode::Refuse);
            pause.await;
            proxies[0].set(Mode::Forward);
            Ok(())
        }
        Fault::OneWithoutStoreLong => {
            let index = shares::seated(running).await?;
            let proxy = running.proxies[index].clone();
            proxy.set(Mode::Refuse);
            let (taken, ()) = tokio::join!(shares::wait_until_taken(running, index), pause);
            proxy.set(Mode::Forward);
            taken
        }
        Fault::ScriptsFlushed => {
            for store in stores {
                ask(programs, store.port(), &["SCRIPT", "FLUSH"]).await?;
            }
            Ok(())
        }
        Fault::StoreEvicts => fill(fault, running, programs, "allkeys-lru").await,
        Fault::StoreFull => fill(fault, running, programs, "noeviction").await,
        Fault::ClockForward => step_clock(running, programs, 5).await,
        Fault::ClockBack => step_clock(running, programs, -5).await,
        Fault::ClockForwardLong => step_clock(running, programs, 90).await,
        Fault::ClockBackLong => step_clock(running, programs, -90).await,
        _ => bail!("{fault:?} is no fault of a store"),
    }
}

/// Fills a store that may have four megabytes, as long as the fault lasts.
async fn fill(fault: Fault, running: &Running, programs: &Programs, policy: &str) -> anyhow::Result<()> {
    let begin = Instant::now();
    let port = running.stores[0].port();
    ask(programs, port, &["CONFIG", "SET", "maxmemory", "4mb", "maxmemory-policy", policy]).await?;
    let mut was_refused = false;
    let mut number = 0_u32;
    while begin.elapsed() < fault.lasts() {
        was_refused |= ask(programs, port, &["EVAL", FILL, "0", &number.to_string()]).await.is_err();
        number += 1;
    }
    let statistics = ask(programs, port, &["INFO", "stats"]).await?;
    let evicted = statistics.lines().find_map(|line| line.trim().strip_prefix("evicted_keys:"));
    let has_evicted = evicted.is_some_and(|evicted| evicted != "0");
    if has_evicted == was_refused {
        bail!("a store with {policy} was not filled: evicted {evicted:?}, refused {was_refused}");
    }
    ask(programs, port, &["CONFIG", "SET", "maxmemory", "0"]).await.map(drop)
}

/// Lets the store's clock show another time than this machine's from now on.
async fn step_clock(running: &Running, programs: &Programs, seconds: i64) -> anyhow::Result<()> {
    let clock = running.clock.as_ref().context("a store whose clock can step")?;
    let next = clock.with_extension("next");
    std::fs::write(&next, format!("{seconds:+}"))?;
    std::fs::rename(next, clock)?;
    let told = ask(programs, running.stores[0].port(), &["TIME"]).await?;
    let told: i64 = told.lines().next().unwrap_or_default().parse()?;
    let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())?;
    if (told - now - seconds).abs() > 1 {
        bail!("the clock of Redis has not stepped by {seconds} s, but by {} s", told - now);
    }
    Ok(())
}
