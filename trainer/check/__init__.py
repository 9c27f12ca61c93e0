"""What a dataset holds, row by row, before anybody pays for training on it. Free of torch.

``report`` reads the file once in bounded memory; ``repeats`` finds rows that come again, on the disk; ``sensitive`` finds secrets
and personal data; ``tokens`` counts with the tokenizer that the job asks for.
"""
