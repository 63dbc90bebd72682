//! `llama_decode`, the way into the engine.

use std::ffi::c_void;
use std::sync::Arc;

use crate::runner::abi::Batch;
use crate::runner::truth::{self, Level, Truth};

/// `llama_context`: what decodes a batch.
pub struct Context {
    /// Decodes a batch with the engine that the pointer stands for; 0 is success.
    decode: unsafe fn(*mut c_void, &Batch) -> i32,
    truth: Option<Arc<Truth>>,
}

impl Context {
    /// A context that decodes with `decode`; with `truth`, each call is noted there.
    pub fn new(decode: unsafe fn(*mut c_void, &Batch) -> i32, truth: Option<Arc<Truth>>) -> Context {
        Context { decode, truth }
    }

    /// Decodes a batch through [`llama_decode`].
    ///
    /// # Safety
    /// `engine` must be what the context's function expects, and the batch's pointers valid.
    pub unsafe fn decode(&self, engine: *mut c_void, batch: Batch) -> i32 {
        let call = Call { context: self, engine };
        let tokens = u32::try_from(batch.n_tokens).unwrap_or(0);
        // SAFETY: as the caller says.
        truth::span(self.truth.as_deref(), Level::Call, tokens, 0, || unsafe { llama_decode(&call, batch) })
    }
}

/// A context and the engine that it works for: what the first argument of [`llama_decode`] points to.
pub struct Call<'a> {
    context: &'a Context,
    engine: *mut c_void,
}

/// Decodes a batch of tokens; 0 is success.
///
/// # Safety
/// `call` must be one of [`Context::decode`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn llama_decode(call: *const Call, batch: Batch) -> i32 {
    // SAFETY: as the caller says.
    let call = unsafe { &*call };
    // SAFETY: as the caller of `Context::decode` says.
    let status = unsafe { (call.context.decode)(call.engine, &batch) };
    if let Some(truth) = &call.context.truth {
        truth.end(Level::Call);
    }
    status
}
