//! A store whose type is erased, for the parts that ask it seldom: they are compiled once instead of once for each type
//! of store. Calls over gRPC ask their store directly.

use std::borrow::Borrow;
use std::pin::Pin;
use std::sync::Arc;

use tokio::time::Instant;

use super::Store;
use crate::engine::check::{Check, CheckVerdict, StoreError, Verdicts};

/// A store of any type.
#[derive(Clone)]
pub struct AnyStore(Arc<dyn Erased>);

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The methods of [`Store`], without type parameters.
trait Erased: Send + Sync {
    fn check<'a>(&'a self, checks: &'a [Check], deadline: Instant) -> Boxed<'a, Result<Verdicts, StoreError>>;
    fn known_denial(&self, check: &Check) -> Option<CheckVerdict>;
    fn close(&self, deadline: Instant) -> Boxed<'_, ()>;
    fn flush_log(&self);
}

impl AnyStore {
    /// Returns another handle to this store.
    pub fn new<S: Store>(store: Arc<S>) -> AnyStore {
        AnyStore(store)
    }
}

impl<S: Store> Erased for S {
    fn check<'a>(&'a self, checks: &'a [Check], deadline: Instant) -> Boxed<'a, Result<Verdicts, StoreError>> {
        Box::pin(Store::check(self, checks, deadline))
    }

    fn known_denial(&self, check: &Check) -> Option<CheckVerdict> {
        Store::known_denial(self, check)
    }

    fn close(&self, deadline: Instant) -> Boxed<'_, ()> {
        Box::pin(Store::close(self, deadline))
    }

    fn flush_log(&self) {
        Store::flush_log(self);
    }
}

impl Store for AnyStore {
    async fn check<C: Borrow<Check> + Sync>(&self, checks: &[C], deadline: Instant) -> Result<Verdicts, StoreError> {
        // Copied, so that the store is compiled for no further type of checks.
        let checks: Vec<Check> = checks.iter().map(|check| check.borrow().clone()).collect();
        Erased::check(&*self.0, &checks, deadline).await
    }

    fn known_denial(&self, check: &Check) -> Option<CheckVerdict> {
        Erased::known_denial(&*self.0, check)
    }

    async fn close(&self, deadline: Instant) {
        Erased::close(&*self.0, deadline).await;
    }

    fn flush_log(&self) {
        Erased::flush_log(&*self.0);
    }
}
