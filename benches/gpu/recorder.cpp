/*
 * What the flight recorder costs, and how fast it writes its file. Needs no GPU: the device is simulated.
 *
 *   cargo build --release -p cachalot-library
 *   g++ -O2 -std=c++17 -I include benches/gpu/recorder.cpp -o recorder target/release/libcachalot.so -lpthread
 *   ./recorder MACHINE OUT
 *
 * Writes operations.csv, threads.csv and files.csv of tests/results/recorder.md to OUT, with MACHINE as the first column; further
 * machines are added to the files.
 *
 * A pair is a request that the cache serves, and its free. The lanes take turns of 2 ms, 101 each, so that a drift of
 * the machine's clock hits all alike. A figure is the median of a lane's turns, in time of the processor.
 */
#include <cachalot.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace {

void needed(cachalot_status status) {
  if (status != CACHALOT_OK) {
    std::fprintf(stderr, "%s\n", cachalot_last_error());
    std::exit(1);
  }
}

/* The seconds of a clock. */
double now(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

cachalot_allocator *made() {
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  options.flags = CACHALOT_SIMULATED;
  options.simulated_bytes = size_t{1} << 50;
  cachalot_allocator *allocator = nullptr;
  needed(cachalot_create(&options, &allocator));
  return allocator;
}

/* Reads the processor's counter, as a trace with exact times does. */
void read_clock() {
#if defined(__x86_64__)
  volatile unsigned long long ticks = __rdtsc();
  static_cast<void>(ticks);
#endif
}

enum class Lane { OFF, RECORDER, CLOCK, EXACT };

void run(cachalot_allocator *allocator, Lane lane, size_t bytes, int pairs) {
  for (int pair = 0; pair < pairs; ++pair) {
    void *block = nullptr;
    if (lane == Lane::CLOCK) {
      read_clock();
    }
    needed(cachalot_malloc(allocator, 0, bytes, nullptr, &block));
    if (lane == Lane::CLOCK) {
      read_clock();
    }
    needed(cachalot_free(allocator, block));
  }
}

/* Opens a table, with its titles if it is new. */
std::FILE *table(const std::string &path, const char *titles) {
  std::FILE *file = std::fopen(path.c_str(), "a");
  if (file == nullptr) {
    std::perror(path.c_str());
    std::exit(1);
  }
  std::fseek(file, 0, SEEK_END);
  if (std::ftell(file) == 0) {
    std::fprintf(file, "%s\n", titles);
  }
  return file;
}

void operations(const std::string &machine, const std::string &out) {
  std::FILE *file =
      table(out + "/operations.csv", "machine,block,\"off, ns a pair\",recorder,the clock alone,exact times");
  for (const size_t bytes : {size_t{4} << 10, size_t{8} << 20}) {
    const Lane lanes[] = {Lane::OFF, Lane::RECORDER, Lane::CLOCK, Lane::EXACT};
    cachalot_allocator *allocators[4];
    for (const Lane lane : lanes) {
      cachalot_allocator *allocator = made();
      if (lane == Lane::RECORDER) {
        needed(cachalot_recorder_start(allocator, "files:0"));
      } else if (lane == Lane::EXACT) {
        needed(cachalot_trace_start(allocator, 0, 131072));
      }
      run(allocator, lane, bytes, 1000000); /* the ring is full then */
      allocators[static_cast<int>(lane)] = allocator;
    }
    std::vector<double> times[4];
    for (int turn = 0; turn < 101; ++turn) {
      for (const Lane lane : lanes) {
        constexpr int PAIRS = 40000;
        const double begin = now(CLOCK_THREAD_CPUTIME_ID);
        run(allocators[static_cast<int>(lane)], lane, bytes, PAIRS);
        times[static_cast<int>(lane)].push_back((now(CLOCK_THREAD_CPUTIME_ID) - begin) / PAIRS * 1e9);
      }
    }
    const double off = median(times[0]);
    std::fprintf(file, "%s,%zu KiB,%.1f", machine.c_str(), bytes >> 10, off);
    for (int lane = 1; lane < 4; ++lane) {
      std::fprintf(file, ",+%.1f", (median(times[lane]) - off) / 2);
    }
    std::fprintf(file, "\n");
    for (cachalot_allocator *allocator : allocators) {
      needed(cachalot_destroy(allocator));
    }
  }
  std::fclose(file);
}

/* Millions of pairs a second of a number of threads, each with its own stream. */
double rate(cachalot_allocator *allocator, int threads) {
  constexpr int PAIRS = 1000000;
  std::atomic<int> ready{0};
  std::vector<std::thread> started;
  double begin = 0;
  for (int thread = 0; thread < threads; ++thread) {
    started.emplace_back([&, thread] {
      const auto stream = reinterpret_cast<cachalot_stream>(static_cast<uintptr_t>(thread + 1) << 16);
      const auto pairs = [&](int count) {
        for (int pair = 0; pair < count; ++pair) {
          void *block = nullptr;
          needed(cachalot_malloc(allocator, 0, 4096, stream, &block));
          needed(cachalot_free(allocator, block));
        }
      };
      pairs(1000);
      if (++ready == threads) {
        begin = now(CLOCK_MONOTONIC);
        ready = threads + 1;
      }
      while (ready <= threads) {
      }
      pairs(PAIRS);
    });
  }
  for (std::thread &thread : started) {
    thread.join();
  }
  return threads * static_cast<double>(PAIRS) / (now(CLOCK_MONOTONIC) - begin) / 1e6;
}

void threads(const std::string &machine, const std::string &out) {
  std::FILE *file = table(out + "/threads.csv", "machine,threads,\"off, million pairs a second\",recorder");
  for (const int count : {1, 2, 4, 8, 16}) {
    if (static_cast<unsigned>(count) > std::thread::hardware_concurrency()) {
      continue;
    }
    std::vector<double> rates[2];
    for (int round = 0; round < 5; ++round) {
      for (const bool records : {false, true}) {
        cachalot_allocator *allocator = made();
        if (records) {
          needed(cachalot_recorder_start(allocator, "files:0"));
        }
        rates[records ? 1 : 0].push_back(rate(allocator, count));
        needed(cachalot_destroy(allocator));
      }
    }
    std::fprintf(file, "%s,%d,%.1f,%.1f\n", machine.c_str(), count, median(rates[0]), median(rates[1]));
  }
  std::fclose(file);
}

void describe(void *, cachalot_stack *stack, cachalot_action) {
  for (int line = 0; line < 20; ++line) {
    cachalot_stack_push(stack, "forward", "torch/nn/modules/module.py", line);
  }
}

void files(const std::string &machine, const std::string &out) {
  std::FILE *file = table(out + "/files.csv", "machine,a million events,\"seconds, least\",most,of the processor,MB");
  for (const bool with_stacks : {false, true}) {
    cachalot_allocator *allocator = made();
    if (with_stacks) {
      needed(cachalot_on_stack(allocator, describe, nullptr));
    }
    needed(cachalot_recorder_start(allocator, "events:1000000,files:0"));
    std::vector<void *> held(10000);
    for (size_t number = 0; number < held.size(); ++number) {
      needed(cachalot_malloc(allocator, 0, 600 + number % 5000, nullptr, &held[number]));
    }
    /* Three events each. */
    for (size_t number = 0; number < 400000; ++number) {
      void *block = nullptr;
      needed(cachalot_malloc(allocator, 0, 600 + number % 5000, nullptr, &block));
      needed(cachalot_free(allocator, block));
    }
    const std::string path = out + "/events.pickle";
    cachalot_snapshot_options options = CACHALOT_SNAPSHOT_OPTIONS_INIT;
    options.path = path.c_str();
    std::vector<double> times, busy;
    for (int round = 0; round < 5; ++round) {
      const double begin = now(CLOCK_MONOTONIC), begun = now(CLOCK_THREAD_CPUTIME_ID);
      needed(cachalot_snapshot(allocator, &options, nullptr, nullptr));
      times.push_back(now(CLOCK_MONOTONIC) - begin);
      busy.push_back(now(CLOCK_THREAD_CPUTIME_ID) - begun);
    }
    std::FILE *written = std::fopen(path.c_str(), "r");
    std::fseek(written, 0, SEEK_END);
    const double size = static_cast<double>(std::ftell(written)) / 1e6;
    std::fclose(written);
    std::remove(path.c_str());
    std::sort(times.begin(), times.end());
    std::fprintf(file, "%s,%s,%.3f,%.3f,%.3f,%.1f\n", machine.c_str(),
                 with_stacks ? "stacks of 20 frames" : "no stacks", times.front(), times.back(), median(busy), size);
    for (void *block : held) {
      needed(cachalot_free(allocator, block));
    }
    needed(cachalot_destroy(allocator));
  }
  std::fclose(file);
}

}  // namespace

int main(int, char **argv) {
  if (argv[1] == nullptr || argv[2] == nullptr) {
    std::fprintf(stderr, "usage: recorder MACHINE OUT\n");
    return 2;
  }
  operations(argv[1], argv[2]);
  threads(argv[1], argv[2]);
  files(argv[1], argv[2]);
  return 0;
}
