//! Who asks, and what they may do.
//!
//! [`authenticate`] finds the [`Caller`] of each request. A handler names what it needs as an argument: [`Reader`],
//! [`Writer`] or [`Admin`], each of which holds the tenant's scope. Without one of them a handler has no scope, so that
//! no route can forget to ask.

use crate::app::App;
use crate::problem::Problem;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use everturn_engine::Scope;
use std::sync::Arc;

/// What a caller may do. Each may do what the ones before it may.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    /// Read.
    Reader,
    /// Read, append and derive.
    Writer,
    /// Also delete, erase, and make keys.
    Admin,
}

/// Who asks.
#[derive(Clone)]
pub struct Caller {
    /// What is theirs.
    pub scope: Scope,
    /// What they may do.
    pub role: Role,
}

/// Finds who asks; what needs nobody goes on without.
pub async fn authenticate(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    // Without keys only this machine can reach us: see `serve`.
    let caller = app.store.tenant("default").map(|scope| Caller { scope, role: Role::Admin });
    match caller {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(error) => Problem::from(error).into_response(),
    }
}

macro_rules! needs {
    ($($(#[$doc:meta])* $name:ident),+) => {$(
        $(#[$doc])*
        pub struct $name(pub Scope);

        impl<S: Sync> FromRequestParts<S> for $name {
            type Rejection = Problem;

            async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<$name, Problem> {
                allow(parts, Role::$name).map($name)
            }
        }
    )+};
}
needs!(
    /// May read.
    Reader,
    /// May append.
    Writer,
    /// May do everything.
    Admin
);

fn allow(parts: &Parts, needed: Role) -> Result<Scope, Problem> {
    match parts.extensions.get::<Caller>() {
        None => Err(Problem::unauthorized("this needs a key; send it as Authorization: Bearer et_…")),
        Some(caller) if caller.role < needed => Err(Problem::new(
            StatusCode::FORBIDDEN,
            "access.role",
            format!("this needs the role {needed:?}, the key has {:?}; use another key", caller.role),
        )),
        Some(caller) => Ok(caller.scope.clone()),
    }
}
