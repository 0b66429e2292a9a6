"""A BERT classifier with the Trainer of transformers."""
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Reviews(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, 30000, (128,), generator=generator)
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": index % 2}


def main():
    model = BertForSequenceClassification(BertConfig(num_hidden_layers=6))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=16, per_device_eval_batch_size=32, num_train_epochs=1,
            learning_rate=2e-5, logging_steps=2, eval_strategy="epoch", save_strategy="no", report_to=[])
        trainer = Trainer(model=model, args=arguments, train_dataset=Reviews(), eval_dataset=Reviews())
        trainer.train()


if __name__ == "__main__":
    main()
