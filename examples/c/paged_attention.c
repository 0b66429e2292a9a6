/*
 * The memory of a paged attention over an elastic range, as a serving engine has it. The tokens of a sequence are in
 * blocks, which the sequence's block table names in order. Sequences that begin alike share blocks, which are counted.
 * A page of the range has memory while one of its blocks is in use, and a moment without work gives the rest back.
 *
 *   paged_attention [--simulated] [CONFIG]        CONFIG: such as "policy:stitched", the default
 *
 * A kernel would get the tables and the range's address. Here the driver writes and reads the tokens. With --simulated,
 * there is no device memory, so only the tables and the pages are checked.
 */
#include "host.h"

enum {
  MIB = 1 << 20,
  TOKEN = 8 << 10,      /* The keys and values of a token, of all layers. */
  BLOCK_TOKENS = 16,    /* The tokens of a block. */
  BLOCK = BLOCK_TOKENS * TOKEN,
  BLOCKS = 1024,        /* The blocks that have addresses. */
  MOST_PAGES = BLOCKS / 16,
  MOST_BLOCKS = 32,     /* The blocks of the longest sequence. */
  MOST_TOKENS = MOST_BLOCKS * BLOCK_TOKENS,
  SEQUENCES = 12,
  PROMPT = 200,         /* The tokens with which all sequences begin. */
  LIMIT = 32 * MIB
};

typedef struct paged_cache {
  cachalot_range range;
  CUstream stream;
  int simulated;
  int page_blocks;            /* The blocks of a page. */
  int users[BLOCKS];          /* The sequences whose tables name the block. */
  int used[MOST_PAGES];       /* The blocks in use of a page. */
  int has_memory[MOST_PAGES]; /* Whether the page has memory. */
} paged_cache;

typedef struct sequence {
  int blocks[MOST_BLOCKS]; /* The block table. */
  int tokens;
  uint32_t written[MOST_TOKENS]; /* What was written to each token, for the check. */
} sequence;

static CUdeviceptr place(const paged_cache *cache, int block) {
  return address(cache->range.base) + (CUdeviceptr)block * BLOCK;
}

/* The block and the page of a token are found by the table alone. */
static CUdeviceptr token(const paged_cache *cache, const sequence *of, int number) {
  return place(cache, of->blocks[number / BLOCK_TOKENS]) + (CUdeviceptr)(number % BLOCK_TOKENS) * TOKEN;
}

/* The free block with the lowest address, in pages that have memory or in those that have none. -1 if there is none. */
static int find_block(const paged_cache *cache, int has_memory) {
  int block;
  for (block = 0; block < BLOCKS; ++block) {
    if (cache->users[block] == 0 && cache->has_memory[block / cache->page_blocks] == has_memory) {
      return block;
    }
  }
  return -1;
}

/* Takes a block for one user. Low addresses first: the last pages become free sooner, and the range grows at its end,
 * where the allocator maps pages ahead. After a failure, nothing has changed. */
static cachalot_status take_block(paged_cache *cache, int *out) {
  const size_t page_bytes = cache->range.page_bytes;
  int block = find_block(cache, 1);
  if (block < 0) {
    cachalot_status status = CACHALOT_ERROR_OUT_OF_MEMORY;
    block = find_block(cache, 0);
    if (block >= 0) {
      const size_t page = (size_t)(block / cache->page_blocks);
      status = cachalot_range_commit(cache->range, page * page_bytes, page_bytes, cache->stream);
    }
    if (status != CACHALOT_OK) {
      return status;
    }
    cache->has_memory[block / cache->page_blocks] = 1;
  }
  cache->users[block] = 1;
  ++cache->used[block / cache->page_blocks];
  *out = block;
  return CACHALOT_OK;
}

static void leave_block(paged_cache *cache, int block) {
  if (--cache->users[block] == 0) {
    --cache->used[block / cache->page_blocks];
  }
}

/* Gives a sequence a copy of its last block, because the tokens to come are its own. */
static cachalot_status copy_last_block(paged_cache *cache, sequence *of) {
  int *last = &of->blocks[(of->tokens - 1) / BLOCK_TOKENS], own = 0;
  const cachalot_status status = take_block(cache, &own);
  if (status == CACHALOT_OK) {
    if (!cache->simulated) {
      CUDA(cuMemcpyDtoDAsync(place(cache, own), place(cache, *last), BLOCK, cache->stream));
    }
    leave_block(cache, *last);
    *last = own;
  }
  return status;
}

/* Appends a token. Full blocks are never written again, so they need no copy. */
static cachalot_status append(paged_cache *cache, sequence *to, uint32_t value) {
  cachalot_status status = CACHALOT_OK;
  EXPECT(to->tokens < MOST_TOKENS);
  if (to->tokens % BLOCK_TOKENS == 0) {
    status = take_block(cache, &to->blocks[to->tokens / BLOCK_TOKENS]);
  } else if (cache->users[to->blocks[to->tokens / BLOCK_TOKENS]] > 1) {
    status = copy_last_block(cache, to);
  }
  if (status == CACHALOT_OK) {
    to->written[to->tokens] = value;
    if (!cache->simulated) {
      CUDA(cuMemsetD32Async(token(cache, to, to->tokens), value, TOKEN / 4, cache->stream));
    }
    ++to->tokens;
  }
  return status;
}

/* Begins a sequence with the tokens of another one, without a copy and without memory. */
static void fork_sequence(paged_cache *cache, sequence *to, const sequence *from) {
  int block;
  *to = *from;
  for (block = 0; block * BLOCK_TOKENS < to->tokens; ++block) {
    ++cache->users[to->blocks[block]];
  }
}

static void end_sequence(paged_cache *cache, sequence *of) {
  int block;
  for (block = 0; block * BLOCK_TOKENS < of->tokens; ++block) {
    leave_block(cache, of->blocks[block]);
  }
  of->tokens = 0;
}

/* Moves the last blocks into free ones before them, and changes the tables that name them, so that the last pages have
 * no block in use. */
static void compact(paged_cache *cache, sequence *sequences) {
  int from, to, number, block;
  for (from = BLOCKS - 1; (to = find_block(cache, 1)) >= 0 && to < from; --from) {
    if (cache->users[from] == 0) {
      continue;
    }
    if (!cache->simulated) {
      CUDA(cuMemcpyDtoDAsync(place(cache, to), place(cache, from), BLOCK, cache->stream));
    }
    for (number = 0; number < SEQUENCES; ++number) {
      for (block = 0; block * BLOCK_TOKENS < sequences[number].tokens; ++block) {
        if (sequences[number].blocks[block] == from) {
          sequences[number].blocks[block] = to;
        }
      }
    }
    cache->used[to / cache->page_blocks] += 1;
    cache->used[from / cache->page_blocks] -= 1;
    cache->users[to] = cache->users[from];
    cache->users[from] = 0;
  }
}

/* A moment without work: pages without a block in use serve others, after the work submitted so far. Neither this call
 * nor the next growth waits, and a growth at the same place costs no call of the driver unless others took the page. */
static void shrink(paged_cache *cache) {
  const size_t page_bytes = cache->range.page_bytes;
  int page;
  for (page = 0; page < BLOCKS / cache->page_blocks; ++page) {
    if (cache->has_memory[page] && cache->used[page] == 0) {
      CACHALOT(cachalot_range_decommit(cache->range, (size_t)page * page_bytes, page_bytes, cache->stream));
      cache->has_memory[page] = 0;
    }
  }
}

static int pages_with_memory(const paged_cache *cache) {
  int page, count = 0;
  for (page = 0; page < MOST_PAGES; ++page) {
    count += cache->has_memory[page];
  }
  return count;
}

/* Reads every token of a sequence through its table. */
static void check(const paged_cache *cache, const sequence *of) {
  static uint32_t block[BLOCK / 4];
  int number;
  for (number = 0; number < of->tokens && !cache->simulated; ++number) {
    const int in_block = number % BLOCK_TOKENS * (TOKEN / 4);
    if (in_block == 0) {
      CUDA(cuMemcpyDtoHAsync(block, token(cache, of, number), BLOCK, cache->stream));
      CUDA(cuStreamSynchronize(cache->stream));
    }
    EXPECT(block[in_block] == of->written[number] && block[in_block + TOKEN / 4 - 1] == of->written[number]);
  }
}

static void check_all(const cachalot_allocator *allocator, const paged_cache *cache, const sequence *sequences) {
  cachalot_statistics now = CACHALOT_STATISTICS_INIT;
  int number;
  for (number = 0; number < SEQUENCES; ++number) {
    check(cache, &sequences[number]);
  }
  CACHALOT(cachalot_get_statistics(allocator, 0, &now));
  EXPECT(now.allocated_bytes.current == (int64_t)pages_with_memory(cache) * (int64_t)cache->range.page_bytes);
}

int main(int count, char **texts) {
  static sequence sequences[SEQUENCES], prompt;
  static paged_cache cache;
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_allocator *allocator = NULL;
  int number, step, most, without, idle;

  options.config = "policy:stitched";
  options.limit_bytes = LIMIT;
  for (number = 1; number < count; ++number) {
    if (strcmp(texts[number], "--simulated") == 0) {
      options.flags |= CACHALOT_SIMULATED;
      cache.simulated = 1;
    } else {
      options.config = texts[number];
    }
  }
  if (!cache.simulated) {
    enter_device(0);
    cache.stream = new_stream();
  }
  CACHALOT(cachalot_create(&options, &allocator));
  CACHALOT(cachalot_range_reserve(allocator, 0, (size_t)BLOCKS * BLOCK, &cache.range));
  cache.page_blocks = (int)(cache.range.page_bytes / BLOCK);

  /* A prompt that all sequences share, and then steps in which each sequence gets a token. */
  for (step = 0; step < PROMPT; ++step) {
    CACHALOT(append(&cache, &prompt, (uint32_t)step));
  }
  for (number = 0; number < SEQUENCES; ++number) {
    fork_sequence(&cache, &sequences[number], &prompt);
  }
  end_sequence(&cache, &prompt);
  for (step = 0; step < 240; ++step) {
    for (number = 0; number < SEQUENCES; ++number) {
      if (step < 120 + 10 * number) {
        CACHALOT(append(&cache, &sequences[number], (uint32_t)(1000 * (number + 1) + step)));
      }
    }
  }
  check_all(allocator, &cache, sequences);
  most = pages_with_memory(&cache);
  for (without = 0, number = 0; number < SEQUENCES; ++number) {
    without += (sequences[number].tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
  }
  without = (without + cache.page_blocks - 1) / cache.page_blocks;
  EXPECT(most < without);

  /* Most sequences end, and the shared blocks stay for the others. The rest goes into the first pages. */
  for (number = 0; number < SEQUENCES; ++number) {
    if (number % 6 != 0) {
      end_sequence(&cache, &sequences[number]);
    }
  }
  compact(&cache, sequences);
  shrink(&cache);
  check_all(allocator, &cache, sequences);
  idle = pages_with_memory(&cache);
  EXPECT(idle < most);

  /* A longer one begins like the first, and is refused what the limit does not have. What it had is as it was. */
  fork_sequence(&cache, &sequences[1], &sequences[0]);
  while (sequences[1].tokens < MOST_TOKENS) {
    CACHALOT(append(&cache, &sequences[1], (uint32_t)sequences[1].tokens));
  }
  for (number = 2; number < SEQUENCES; ++number) {
    cachalot_status status = CACHALOT_OK;
    while (status == CACHALOT_OK && sequences[number].tokens < MOST_TOKENS) {
      status = append(&cache, &sequences[number], (uint32_t)(number + sequences[number].tokens));
    }
    EXPECT(status == CACHALOT_OK || status == CACHALOT_ERROR_OUT_OF_MEMORY);
  }
  EXPECT(sequences[SEQUENCES - 1].tokens < MOST_TOKENS);
  check_all(allocator, &cache, sequences);

  /* All end. */
  for (number = 0; number < SEQUENCES; ++number) {
    end_sequence(&cache, &sequences[number]);
  }
  shrink(&cache);
  check_all(allocator, &cache, sequences);
  EXPECT(pages_with_memory(&cache) == 0);
  printf("paged_attention: %d pages for %d sequences, %d without shared blocks; %d after most have ended, 0 at the end\n",
         most, SEQUENCES, without, idle);

  CACHALOT(cachalot_range_release(cache.range));
  if (!cache.simulated) {
    end_stream(allocator, 0, cache.stream);
  }
  CACHALOT(cachalot_check_invariants(allocator));
  CACHALOT(cachalot_destroy(allocator));
  if (!cache.simulated) {
    leave_device(0);
  }
  return 0;
}
