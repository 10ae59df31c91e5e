//! A BERT small enough to be computed by hand: its files, and the same network in plain loops.

use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;

pub const HIDDEN: usize = 8;
const HEADS: usize = 2;
const INNER: usize = 12;
const LAYERS: usize = 2;
const POSITIONS: usize = 16;
const WORDS: [&str; 12] =
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "a", "lock", "file", "writer", "waits", "is", "open"];

/// The weights by name, each with its shape.
pub struct Tiny(BTreeMap<String, (Vec<usize>, Vec<f32>)>);

impl Tiny {
    /// Writes a folder that holds such a model; always the same.
    pub fn write(folder: &Path) -> Tiny {
        let tiny = Tiny::make();
        let config = json!({
            "model_type": "bert", "vocab_size": WORDS.len(), "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS, "intermediate_size": INNER, "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1, "max_position_embeddings": POSITIONS, "type_vocab_size": 2,
            "initializer_range": 0.02, "layer_norm_eps": 1e-12, "pad_token_id": 0
        });
        let vocabulary: BTreeMap<&str, usize> =
            WORDS.iter().enumerate().map(|(id, word)| (*word, id)).collect();
        let piece = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
        let special = |id: usize| json!({"id": WORDS[id], "ids": [id], "tokens": [WORDS[id]]});
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                "strip_accents": null, "lowercase": true},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {"type": "TemplateProcessing",
                "single": [piece("[CLS]"), {"Sequence": {"id": "A", "type_id": 0}}, piece("[SEP]")],
                "pair": [piece("[CLS]"), {"Sequence": {"id": "A", "type_id": 0}}, piece("[SEP]"),
                    {"Sequence": {"id": "B", "type_id": 1}}, piece("[SEP]")],
                "special_tokens": {"[CLS]": special(2), "[SEP]": special(3)}},
            "decoder": null,
            "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100, "vocab": vocabulary}
        });
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
        std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
        std::fs::write(folder.join("model.safetensors"), tiny.safetensors()).unwrap();
        tiny
    }

    fn make() -> Tiny {
        let mut weights = BTreeMap::new();
        let mut random = fastrand::Rng::with_seed(1);
        let mut add = |name: String, shape: Vec<usize>| {
            let count = shape.iter().product();
            let numbers = (0..count).map(|_| random.f32() - 0.5);
            weights.insert(name, (shape, numbers.collect()));
        };
        for (name, rows) in [("word", WORDS.len()), ("position", POSITIONS), ("token_type", 2)] {
            add(format!("embeddings.{name}_embeddings.weight"), vec![rows, HIDDEN]);
        }
        let mut pair = |name: String, weight: Vec<usize>| {
            add(format!("{name}.bias"), vec![weight[0]]);
            add(format!("{name}.weight"), weight);
        };
        pair("embeddings.LayerNorm".into(), vec![HIDDEN]);
        for layer in 0..LAYERS {
            let at = format!("encoder.layer.{layer}");
            for name in ["self.query", "self.key", "self.value", "output.dense"] {
                pair(format!("{at}.attention.{name}"), vec![HIDDEN, HIDDEN]);
            }
            pair(format!("{at}.attention.output.LayerNorm"), vec![HIDDEN]);
            pair(format!("{at}.intermediate.dense"), vec![INNER, HIDDEN]);
            pair(format!("{at}.output.dense"), vec![HIDDEN, INNER]);
            pair(format!("{at}.output.LayerNorm"), vec![HIDDEN]);
        }
        Tiny(weights)
    }

    fn safetensors(&self) -> Vec<u8> {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        for (name, (shape, numbers)) in &self.0 {
            let start = data.len();
            data.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
            header.insert(
                name.clone(),
                json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]}),
            );
        }
        let header = serde_json::to_string(&header).unwrap();
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
    }

    fn weight(&self, name: &str) -> &[f32] {
        &self.0[name].1
    }

    fn linear(&self, name: &str, rows: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let (weight, bias) = (self.weight(&format!("{name}.weight")), self.weight(&format!("{name}.bias")));
        let wide = weight.len() / bias.len();
        let cell = |row: &[f32], out: usize| {
            bias[out] + (0..wide).map(|at| row[at] * weight[out * wide + at]).sum::<f32>()
        };
        rows.iter().map(|row| (0..bias.len()).map(|out| cell(row, out)).collect()).collect()
    }

    fn norm(&self, name: &str, rows: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        let (weight, bias) = (self.weight(&format!("{name}.weight")), self.weight(&format!("{name}.bias")));
        let one = |row: Vec<f32>| {
            let mean = row.iter().sum::<f32>() / row.len() as f32;
            let spread = row.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / row.len() as f32;
            let cell = |at: usize| (row[at] - mean) / (spread + 1e-12).sqrt() * weight[at] + bias[at];
            (0..row.len()).map(cell).collect()
        };
        rows.into_iter().map(one).collect()
    }

    fn attention(&self, at: &str, rows: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let [query, key, value] =
            ["query", "key", "value"].map(|name| self.linear(&format!("{at}.attention.self.{name}"), rows));
        let wide = HIDDEN / HEADS;
        let mut mixed = vec![vec![0.0; HIDDEN]; rows.len()];
        for head in 0..HEADS {
            let span = head * wide..(head + 1) * wide;
            for (row, mixed) in mixed.iter_mut().enumerate() {
                let score = |other: usize| {
                    let dot: f32 = span.clone().map(|at| query[row][at] * key[other][at]).sum();
                    (dot / (wide as f32).sqrt()).exp()
                };
                let scores: Vec<f32> = (0..rows.len()).map(score).collect();
                let all: f32 = scores.iter().sum();
                for at in span.clone() {
                    mixed[at] = (0..rows.len()).map(|other| scores[other] / all * value[other][at]).sum();
                }
            }
        }
        mixed
    }

    /// The vector of a text, of at most as many words as there are positions.
    pub fn embed(&self, text: &str) -> Vec<f32> {
        let text = if text.is_empty() { "." } else { text };
        let id = |word: &str| WORDS.iter().position(|known| *known == word).unwrap_or(1);
        let ids = [vec![2], text.split(' ').map(id).collect(), vec![3]].concat();
        let row = |(at, id): (usize, &usize)| -> Vec<f32> {
            let part = |name: &str, row: usize, cell: usize| {
                self.weight(&format!("embeddings.{name}_embeddings.weight"))[row * HIDDEN + cell]
            };
            (0..HIDDEN)
                .map(|cell| {
                    part("word", *id, cell) + part("position", at, cell) + part("token_type", 0, cell)
                })
                .collect()
        };
        let mut rows = self.norm("embeddings.LayerNorm", ids.iter().enumerate().map(row).collect());
        for layer in 0..LAYERS {
            let at = format!("encoder.layer.{layer}");
            let attended = self.linear(&format!("{at}.attention.output.dense"), &self.attention(&at, &rows));
            let attended = self.norm(&format!("{at}.attention.output.LayerNorm"), add(&attended, &rows));
            let mut inner = self.linear(&format!("{at}.intermediate.dense"), &attended);
            inner.iter_mut().flatten().for_each(|x| *x = gelu(*x));
            let out = self.linear(&format!("{at}.output.dense"), &inner);
            rows = self.norm(&format!("{at}.output.LayerNorm"), add(&out, &attended));
        }
        let sum: Vec<f32> = (0..HIDDEN).map(|cell| rows.iter().map(|row| row[cell]).sum()).collect();
        let length = sum.iter().map(|x| x * x).sum::<f32>().sqrt();
        sum.iter().map(|x| x / length).collect()
    }
}

fn add(a: &[Vec<f32>], b: &[Vec<f32>]) -> Vec<Vec<f32>> {
    a.iter().zip(b).map(|(a, b)| a.iter().zip(b).map(|(a, b)| a + b).collect()).collect()
}

/// With the error function by its series, which converges fast for the small numbers here.
fn gelu(x: f32) -> f32 {
    let z = f64::from(x) / std::f64::consts::SQRT_2;
    let (mut term, mut sum) = (z, z);
    for n in 1..60 {
        term *= -z * z / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    let erf = sum * std::f64::consts::FRAC_2_SQRT_PI;
    (f64::from(x) * 0.5 * (1.0 + erf)) as f32
}
