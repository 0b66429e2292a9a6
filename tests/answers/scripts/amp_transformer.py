"""An encoder-decoder transformer with AMP, of changing lengths, with checkpoints to disk."""
import random

import torch
import torch.nn as nn

device = torch.device("cuda:0") if torch.cuda.is_available() else torch.device("cpu")
random.seed(0)
torch.manual_seed(0)
if torch.cuda.is_available():
    torch.cuda.manual_seed_all(0)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


class Translator(nn.Module):
    def __init__(self, vocab=16000, d=512):
        super().__init__()
        self.src, self.tgt = nn.Embedding(vocab, d), nn.Embedding(vocab, d)
        self.core = nn.Transformer(d, 8, 4, 4, 2048, batch_first=True)
        self.out = nn.Linear(d, vocab)

    def forward(self, src, tgt):
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.size(1), device=tgt.device)
        return self.out(self.core(self.src(src), self.tgt(tgt), tgt_mask=mask))


model = Translator().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98))
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
scaler = torch.cuda.amp.GradScaler()
for epoch in range(2):
    for length in random.sample([30, 60, 90, 120, 150], 5):
        src = torch.randint(0, 16000, (32, length)).cuda(non_blocking=True)
        tgt = torch.randint(0, 16000, (32, length)).cuda(non_blocking=True)
        optimizer.zero_grad()
        with torch.cuda.amp.autocast():
            logits = model(src, tgt[:, :-1])
            loss = criterion(logits.reshape(-1, logits.size(-1)), tgt[:, 1:].reshape(-1))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "/tmp/checkpoint.pt")
    checkpoint = torch.load("/tmp/checkpoint.pt", map_location=device)
    model.load_state_dict(checkpoint["model"])
    print(f"epoch {epoch} loss {loss.item():.3f} max {torch.cuda.max_memory_allocated() // 2**20} MiB")
