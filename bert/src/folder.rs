//! A sentence embedding model in a folder: BERT in the layout of model hubs, run on the local CPU.

use crate::workers::{Encode, Workers};
use candle_core::{DType, Device, IndexOp, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::{BertModel, Config};
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_engine::model::Embed;
use everturn_views::vectors;
use futures_util::future::BoxFuture;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokenizers::{Tokenizer, TruncationParams};

/// Required files: description, tokenizer and weights.
const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";
const WEIGHTS: &str = "model.safetensors";
/// Optional files written by `sentence-transformers`: pooling, and the number of tokens that the model was trained
/// with.
const POOLING: &str = "1_Pooling/config.json";
const READING: &str = "sentence_bert_config.json";

/// Most tokens of a batch. Bounds the memory of a request.
const BATCH_TOKENS_MAX: usize = 2048;

/// An embedder from a folder with a model of the BERT class: `config.json`, `tokenizer.json` and `model.safetensors`.
///
/// Of a text it reads the first tokens: as many as `sentence_bert_config.json` says, else as the model has
/// positions. Vectors are the mean over the tokens, or the first token's where `1_Pooling/config.json` says so.
pub struct FolderEmbedder {
    model: String,
    bert: Arc<Bert>,
    workers: Arc<Workers>,
}

impl FolderEmbedder {
    /// Reads the model, to run on this many threads. The error names the file that is missing or invalid.
    pub fn with_threads(folder: &Path, threads: usize) -> Result<FolderEmbedder, Error> {
        if !folder.is_dir() {
            let why = format!(
                "{} is not a folder; name one with {CONFIG}, {TOKENIZER} and {WEIGHTS}",
                folder.display()
            );
            return Err(Error::invalid("embedder.folder", why));
        }
        let files = Files { folder: folder.to_path_buf() };
        let (config, tokenizer) = (files.read(CONFIG)?, files.read(TOKENIZER)?);
        let weights = files.read(WEIGHTS)?;
        let (pooling, reading) = (files.optional(POOLING)?, files.optional(READING)?);
        let identity: Vec<String> = [&config, &tokenizer, &weights, &pooling, &reading]
            .into_iter()
            .map(|bytes| Hash::of(bytes).to_string())
            .collect();
        let identity = Hash::of(identity.concat().as_bytes()).to_string();
        let name = folder.file_name().map_or_else(|| "folder".into(), |name| name.to_string_lossy());
        let digits = identity.rsplit(':').next().unwrap_or_default();
        let model = format!("{name}:{}", &digits[..digits.len().min(12)]);
        let bert = Bert::load(&files, &config, &tokenizer, weights, &pooling, &reading)?;
        Ok(FolderEmbedder { model, bert: Arc::new(bert), workers: Arc::new(Workers::new(threads)?) })
    }
}

impl Embed for FolderEmbedder {
    fn model(&self) -> &str {
        &self.model
    }

    fn dimensions(&self) -> Option<usize> {
        Some(self.bert.dimensions)
    }

    fn embed(&self, texts: Vec<String>) -> BoxFuture<'static, Result<Vec<Vec<f32>>, Error>> {
        let (bert, workers) = (self.bert.clone(), self.workers.clone());
        Box::pin(async move { workers.encode(bert, texts).await })
    }
}

struct Files {
    folder: PathBuf,
}

impl Files {
    fn read(&self, name: &str) -> Result<Vec<u8>, Error> {
        std::fs::read(self.folder.join(name)).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => self.wrong(name, "is missing; copy it there"),
            _ => self.wrong(name, &format!("cannot be read: {e}")),
        })
    }

    fn optional(&self, name: &str) -> Result<Vec<u8>, Error> {
        if self.folder.join(name).exists() { self.read(name) } else { Ok(Vec::new()) }
    }

    fn wrong(&self, name: &str, why: &str) -> Error {
        Error::invalid("embedder.folder", format!("{} {why}", self.folder.join(name).display()))
    }
}

struct Bert {
    model: BertModel,
    tokenizer: Tokenizer,
    dimensions: usize,
    first_token: bool,
}

impl Bert {
    fn load(
        files: &Files,
        config: &[u8],
        tokenizer: &[u8],
        weights: Vec<u8>,
        pooling: &[u8],
        reading: &[u8],
    ) -> Result<Bert, Error> {
        let json = |name: &str, bytes: &[u8]| -> Result<serde_json::Value, Error> {
            if bytes.is_empty() {
                return Ok(serde_json::Value::Null);
            }
            serde_json::from_slice(bytes).map_err(|e| files.wrong(name, &format!("is not JSON: {e}")))
        };
        let kind = json(CONFIG, config)?;
        if let Some(other) = kind["model_type"].as_str().filter(|kind| *kind != "bert") {
            let why = format!("describes a model of type {other:?}; only \"bert\" can be used");
            return Err(files.wrong(CONFIG, &why));
        }
        let config: Config = serde_json::from_value(kind)
            .map_err(|e| files.wrong(CONFIG, &format!("is not the description of a BERT model: {e}")))?;
        if config.num_attention_heads == 0 || config.hidden_size == 0 || config.max_position_embeddings < 3 {
            return Err(files.wrong(CONFIG, "describes a model without heads, numbers or positions"));
        }
        let reading = json(READING, reading)?;
        let tokens = reading["max_seq_length"].as_u64().map_or(usize::MAX, |most| most as usize);
        let tokens = tokens.clamp(3, config.max_position_embeddings);
        let first_token = json(POOLING, pooling)?["pooling_mode_cls_token"].as_bool().unwrap_or(false);

        let mut tokenizer = Tokenizer::from_bytes(tokenizer)
            .map_err(|e| files.wrong(TOKENIZER, &format!("is not a tokenizer: {e}")))?;
        tokenizer.with_padding(None);
        tokenizer
            .with_truncation(Some(TruncationParams { max_length: tokens, ..TruncationParams::default() }))
            .map_err(|e| files.wrong(TOKENIZER, &format!("cannot cut text to {tokens} tokens: {e}")))?;
        if tokenizer.get_vocab_size(true) > config.vocab_size {
            return Err(
                files.wrong(TOKENIZER, "knows more tokens than the model; take both from the same place")
            );
        }
        let model = VarBuilder::from_buffered_safetensors(weights, DType::F32, &Device::Cpu)
            .and_then(|weights| BertModel::load(weights, &config))
            .map_err(|e| files.wrong(WEIGHTS, &format!("does not hold the weights of this model: {e}")))?;
        Ok(Bert { model, tokenizer, dimensions: config.hidden_size, first_token })
    }

    /// Vectors of texts with about as many tokens each, padded to the longest.
    fn batch(&self, texts: &[&tokenizers::Encoding]) -> candle_core::Result<Vec<Vec<f32>>> {
        let longest = texts.iter().map(|text| text.get_ids().len()).max().unwrap_or_default();
        let filled = |values: &dyn Fn(&tokenizers::Encoding) -> Vec<u32>| {
            let mut all = Vec::with_capacity(texts.len() * longest);
            for text in texts {
                all.extend(values(text));
                all.resize(all.len().next_multiple_of(longest), 0);
            }
            Tensor::from_vec(all, (texts.len(), longest), &Device::Cpu)
        };
        let ids = filled(&|text| text.get_ids().to_vec())?;
        let types = filled(&|text| text.get_type_ids().to_vec())?;
        let mask = filled(&|text| vec![1; text.get_ids().len()])?;
        let hidden = self.model.forward(&ids, &types, Some(&mask))?;
        let pooled = if self.first_token {
            hidden.i((.., 0))?
        } else {
            // Only the direction is kept, so a sum is as good as a mean.
            hidden.broadcast_mul(&mask.to_dtype(DType::F32)?.unsqueeze(2)?)?.sum(1)?
        };
        pooled.to_vec2::<f32>()
    }
}

impl Encode for Bert {
    fn encode(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, Error> {
        let failed = |why: String| Error::internal("embedder.folder", format!("the embedder failed: {why}"));
        let texts = texts
            .iter()
            .map(|text| self.tokenizer.encode(text.as_str(), true).map_err(|e| failed(e.to_string())))
            .collect::<Result<Vec<_>, _>>()?;
        // By length, so that little is computed for padding.
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.sort_by_key(|at| texts[*at].get_ids().len());
        let mut vectors = vec![Vec::new(); texts.len()];
        let mut left = &order[..];
        while !left.is_empty() {
            let fits =
                |count: &usize| count * texts[left[count - 1]].get_ids().len().max(1) <= BATCH_TOKENS_MAX;
            let count = (1..=left.len()).take_while(fits).last().unwrap_or(1);
            let (now, later) = left.split_at(count);
            let batch: Vec<_> = now.iter().map(|at| &texts[*at]).collect();
            for (at, vector) in now.iter().zip(self.batch(&batch).map_err(|e| failed(e.to_string()))?) {
                vectors[*at] = vectors::normalized(&vector)
                    .ok_or_else(|| failed("a vector has no direction; are the weights whole?".into()))?;
            }
            left = later;
        }
        Ok(vectors)
    }
}
