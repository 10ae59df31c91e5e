//! The messages of a request, one a line.

use super::{Document, Out, Preamble, is_said};
use crate::provider::{Provider, Rendered, Renderer, SystemSection, request_fields};
use everturn_core::Error;
use everturn_core::event::Event;
use everturn_core::turn::Turn;
use std::io::Write;

pub struct List<'a, W> {
    provider: Provider,
    out: Out<W>,
    renderer: Renderer<'a>,
    /// Whether the beginning is written, and whether a message is.
    begun: bool,
    filled: bool,
}

impl<'a, W: Write> List<'a, W> {
    pub fn new(provider: Provider, out: Out<W>, about: Preamble<'a>) -> List<'a, W> {
        let prompt =
            about.system_prompt.map(|prompt| SystemSection { name: "system", text: &prompt.content });
        let renderer = Renderer::new(provider, prompt.as_slice(), about.media);
        List { provider, out, renderer, begun: false, filled: false }
    }

    fn write(&mut self, rendered: &Rendered) -> Result<(), Error> {
        if !std::mem::replace(&mut self.begun, true) {
            let (messages, system) = request_fields(self.provider);
            let system = rendered.system.as_ref().zip(system);
            let system = system.map(|(text, name)| format!("\"{name}\":{},\n", text.get()));
            self.out.write(&format!("{{{}\"{messages}\":[", system.unwrap_or_default()))?;
        }
        for message in &rendered.messages {
            self.out.write(if std::mem::replace(&mut self.filled, true) { ",\n" } else { "\n" })?;
            self.out.write(message.get())?;
        }
        Ok(())
    }
}

impl<W: Write> Document for List<'_, W> {
    fn turn(&mut self, turn: &Turn) -> Result<(), Error> {
        let Some(message) = turn.message.clone().filter(|_| is_said(turn)) else { return Ok(()) };
        match self.renderer.push(message)? {
            Some(rendered) => self.write(&rendered),
            None => Ok(()),
        }
    }

    fn event(&mut self, _: &Event) -> Result<(), Error> {
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<(), Error> {
        let rest = self.renderer.rest()?;
        self.write(&rest)?;
        self.out.write("\n]}\n")?;
        self.out.flush()
    }
}
