//! `llama_decode`, the entry point of the engine.

use std::ffi::c_void;
use std::sync::Arc;

use crate::abi::LlamaBatch;
use crate::truth::{self, Truth, TruthLevel};

/// `llama_context`: decodes a batch.
pub struct Context {
    /// Decodes a batch with the engine that the pointer refers to; 0 means success.
    decode: unsafe fn(*mut c_void, &LlamaBatch) -> i32,
    truth: Option<Arc<Truth>>,
}

impl Context {
    /// A context that decodes with `decode`; if `truth` is given, each call is recorded there.
    pub fn new(decode: unsafe fn(*mut c_void, &LlamaBatch) -> i32, truth: Option<Arc<Truth>>) -> Context {
        Context { decode, truth }
    }

    /// Decodes a batch through [`llama_decode`].
    ///
    /// # Safety
    /// `engine` must be what the context's function expects, and the batch's pointers valid.
    pub unsafe fn decode(&self, engine: *mut c_void, batch: LlamaBatch) -> i32 {
        let call = DecodeContext { context: self, engine };
        let tokens = u32::try_from(batch.n_tokens).unwrap_or(0);
        // SAFETY: guaranteed by the caller.
        truth::span(self.truth.as_deref(), TruthLevel::Call, tokens, 0, || unsafe {
            llama_decode(&call, batch)
        })
    }
}

/// A context and its engine: what the first argument of [`llama_decode`] points to.
pub struct DecodeContext<'a> {
    context: &'a Context,
    engine: *mut c_void,
}

/// Decodes a batch of tokens; 0 means success.
///
/// # Safety
/// `call` must come from [`Context::decode`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn llama_decode(call: *const DecodeContext, batch: LlamaBatch) -> i32 {
    // SAFETY: guaranteed by the caller.
    let call = unsafe { &*call };
    // SAFETY: guaranteed by the caller of `Context::decode`.
    let status = unsafe { (call.context.decode)(call.engine, &batch) };
    if let Some(truth) = &call.context.truth {
        truth.end(TruthLevel::Call);
    }
    status
}
