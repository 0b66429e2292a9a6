"""An autoencoder with Lightning."""
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Autoencoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(3 * 64 * 64, 4096), nn.ReLU(), nn.Linear(4096, 64))
        self.decoder = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 3 * 64 * 64))

    def training_step(self, batch, index):
        (x,) = batch
        x = x.view(x.size(0), -1)
        loss = nn.functional.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


loader = DataLoader(TensorDataset(torch.rand(1024, 3, 64, 64)), batch_size=128, shuffle=True)
trainer = L.Trainer(
    max_epochs=1, accelerator="auto", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(Autoencoder(), loader)
