// Asks a driver whether a wait of a stream for an event holds while another thread launches graphs.
//
//   nvcc -std=c++17 -O2 -arch=native -o graph_order stress/gpu/graph_order.cu -lcuda && ./graph_order SECONDS
//
// A thread moves blocks between streams: it records an event on the stream that wrote the blocks last, makes the next stream wait
// for the event, checks the blocks there, and writes them anew. A check that finds an earlier generation ran before a write that it
// waits for. Beside it, a second thread launches a graph of one kernel. Each row of the table is SECONDS of one kind of event, of one
// kind of wait, and of one place of the launches. The exit status is 1 if a check ran too early.
#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <shared_mutex>
#include <thread>
#include <vector>

static void succeed(CUresult code, const char *what) {
  if (code == CUDA_SUCCESS) return;
  const char *name = "an unknown error";
  cuGetErrorName(code, &name);
  std::fprintf(stderr, "%s: %s\n", what, name);
  std::_Exit(2);
}
#define TRY(call) succeed((call), #call)

// Streams, blocks, and blocks of a visit at most.
constexpr unsigned STREAMS = 8, BLOCKS = 512, BATCH = 32;
// Visits that the host is ahead of the device at most.
constexpr size_t AHEAD = 64;
constexpr unsigned GROUPS = 16, THREADS = 256;

// A block, and what it contains.
struct Row {
  unsigned *at;
  unsigned words, generation, number;
};

__device__ unsigned long long time_ns() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

__device__ unsigned pattern(const Row &row, unsigned word) {
  return row.number * 0x9e3779b9u ^ row.generation * 0x85ebca6bu ^ word * 0xc2b2ae35u;
}

__global__ void hold(unsigned us) {
  const unsigned long long begin = time_ns();
  do __nanosleep(500);
  while (time_ns() - begin < us * 1000ull);
}

__global__ void write_blocks(const Row *rows, unsigned count) {
  for (unsigned i = blockIdx.x; i < count; i += gridDim.x)
    for (unsigned word = threadIdx.x; word < rows[i].words; word += blockDim.x) rows[i].at[word] = pattern(rows[i], word);
}

// Counts the visit at `early` if a block differs, once, and not at all after a later visit.
__global__ void check_blocks(const Row *rows, unsigned count, unsigned visit, unsigned *last_early, unsigned long long *early) {
  __shared__ unsigned differs;
  if (threadIdx.x == 0) differs = 0;
  __syncthreads();
  for (unsigned i = blockIdx.x; i < count; i += gridDim.x)
    for (unsigned word = threadIdx.x; word < rows[i].words; word += blockDim.x)
      if (rows[i].at[word] != pattern(rows[i], word)) differs = 1;
  __syncthreads();
  if (threadIdx.x == 0 && differs && atomicMax(last_early, visit) < visit) atomicAdd(early, 1ull);
}

// The waiter for the event, and its way of waiting.
enum class Wait { OfStream, OfHost, OfHostForContext };

// The stream on which the second thread launches its graph.
enum class Launches { None, OnTheStreams, OnItsOwnStream, NotDuringARecord };

struct Case {
  const char *event, *wait_name, *place;
  unsigned flags;
  Wait wait;
  Launches launches;
};

struct Result {
  unsigned long long visits = 0, launches = 0, early = 0;
};

static CUstream make_stream() {
  CUstream stream;
  TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

static CUevent make_event(unsigned flags) {
  CUevent event;
  TRY(cuEventCreate(&event, flags));
  return event;
}

template <typename T>
static T *make_memory(size_t count) {
  CUdeviceptr address;
  TRY(cuMemAlloc(&address, count * sizeof(T)));
  TRY(cuMemsetD8(address, 0, count * sizeof(T)));
  return reinterpret_cast<T *>(address);
}

static CUgraphExec make_graph() {
  CUstream stream = make_stream();
  CUgraph graph;
  CUgraphExec ready;
  TRY(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  hold<<<1, 1, 0, stream>>>(1);
  TRY(cuStreamEndCapture(stream, &graph));
  TRY(cuGraphInstantiate(&ready, graph, 0));
  TRY(cuGraphDestroy(graph));
  TRY(cuStreamDestroy(stream));
  return ready;
}

// The state of a case.
struct Run {
  Case of;
  CUcontext context;
  double seconds;
  std::vector<CUstream> streams;
  std::atomic<bool> ends{false};
  // Held by a launch alone, and shared by records, in the case of `NotDuringARecord`.
  std::shared_mutex launching;
  Result result;

  bool is_apart() const { return of.launches == Launches::NotDuringARecord; }
  void launch(CUgraphExec graph);
  void visit();
};

// Launches a graph until the run ends.
void Run::launch(CUgraphExec graph) {
  TRY(cuCtxSetCurrent(context));
  std::mt19937 random(2);
  CUstream own = make_stream();
  while (!ends) {
    CUstream stream = of.launches == Launches::OnItsOwnStream ? own : streams[random() % STREAMS];
    for (int i = 0; i < 20; i++, result.launches++) {
      if (is_apart()) launching.lock();
      TRY(cuGraphLaunch(graph, stream));
      if (is_apart()) launching.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    TRY(cuStreamSynchronize(stream));
  }
  TRY(cuStreamDestroy(own));
}

// Moves blocks between the streams until the time is over.
void Run::visit() {
  std::mt19937 random(1);
  CUevent order = make_event(of.flags);
  std::vector<Row> rows(BLOCKS);
  std::vector<std::vector<unsigned>> on(STREAMS);
  std::vector<Row *> tables(STREAMS);
  for (auto &table : tables) table = make_memory<Row>(BATCH);
  auto *last_early = make_memory<unsigned>(1);
  auto *early = make_memory<unsigned long long>(1);
  auto put = [&](unsigned stream, const std::vector<Row> &list) {
    TRY(cuMemcpyHtoDAsync(reinterpret_cast<CUdeviceptr>(tables[stream]), list.data(), list.size() * sizeof(Row), streams[stream]));
  };
  for (unsigned i = 0; i < BLOCKS; i++) {
    const unsigned words = 128u << random() % 9;
    rows[i] = {make_memory<unsigned>(words), words, 0, i + 1};
    on[0].push_back(i);
    put(0, {rows[i]});
    write_blocks<<<GROUPS, THREADS, 0, streams[0]>>>(tables[0], 1);
  }
  TRY(cuCtxSynchronize());

  std::vector<CUevent> pace(AHEAD);
  for (auto &event : pace) event = make_event(CU_EVENT_DISABLE_TIMING);
  // Captured here: an event of the whole context would break a capture at the same time.
  CUgraphExec graph = make_graph();
  std::thread launcher;
  if (of.launches != Launches::None) launcher = std::thread([this, graph] { launch(graph); });
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < end) {
    const unsigned from = random() % STREAMS, to = random() % STREAMS;
    if (from == to || on[from].empty()) continue;
    std::vector<unsigned> blocks(1 + random() % std::min<size_t>(BATCH, on[from].size()));
    for (auto &block : blocks) {
      std::swap(on[from][random() % on[from].size()], on[from].back());
      block = on[from].back();
      on[from].pop_back();
    }
    if (of.wait == Wait::OfHostForContext) {
      TRY(cuCtxRecordEvent(context, order));
    } else {
      if (is_apart()) launching.lock_shared();
      TRY(cuEventRecord(order, streams[from]));
      if (is_apart()) launching.unlock_shared();
    }
    if (of.wait == Wait::OfStream) TRY(cuStreamWaitEvent(streams[to], order, 0));
    else TRY(cuEventSynchronize(order));
    if (random() % 8 == 0) hold<<<1, 1, 0, streams[to]>>>(1 + random() % 40);
    std::vector<Row> list;
    for (unsigned block : blocks) list.push_back(rows[block]);
    put(to, list);
    check_blocks<<<GROUPS, THREADS, 0, streams[to]>>>(tables[to], list.size(), ++result.visits, last_early, early);
    list.clear();
    for (unsigned block : blocks) {
      rows[block].generation++;
      list.push_back(rows[block]);
      on[to].push_back(block);
    }
    put(to, list);
    write_blocks<<<GROUPS, THREADS, 0, streams[to]>>>(tables[to], list.size());
    CUevent paced = pace[result.visits % AHEAD];
    TRY(cuEventSynchronize(paced));
    TRY(cuEventRecord(paced, streams[to]));
  }
  ends = true;
  if (launcher.joinable()) launcher.join();
  TRY(cuCtxSynchronize());
  TRY(cuGraphExecDestroy(graph));
  TRY(cuMemcpyDtoH(&result.early, reinterpret_cast<CUdeviceptr>(early), sizeof result.early));
  auto give_back = [](auto *at) { TRY(cuMemFree(reinterpret_cast<CUdeviceptr>(at))); };
  for (auto &row : rows) give_back(row.at);
  for (auto &table : tables) give_back(table);
  give_back(last_early), give_back(early);
  for (auto &event : pace) TRY(cuEventDestroy(event));
  TRY(cuEventDestroy(order));
}

int main(int count, char **arguments) {
  const double seconds = count == 2 ? std::atof(arguments[1]) : 0;
  if (seconds <= 0) {
    std::fprintf(stderr, "usage: graph_order SECONDS\n");
    return 2;
  }
  TRY(cuInit(0));
  CUdevice device;
  CUcontext context;
  TRY(cuDeviceGet(&device, 0));
  TRY(cuDevicePrimaryCtxRetain(&context, device));
  TRY(cuCtxSetCurrent(context));
  constexpr unsigned PLAIN = CU_EVENT_DISABLE_TIMING, TIMED = CU_EVENT_DEFAULT, SHARED = PLAIN | CU_EVENT_INTERPROCESS;
  const Case cases[] = {
      {"without timing", "of the stream", "none", PLAIN, Wait::OfStream, Launches::None},
      {"without timing", "of the stream", "on the streams", PLAIN, Wait::OfStream, Launches::OnTheStreams},
      {"without timing", "of the stream", "on a stream of its own", PLAIN, Wait::OfStream, Launches::OnItsOwnStream},
      {"without timing", "of the stream", "on the streams, not during a record", PLAIN, Wait::OfStream, Launches::NotDuringARecord},
      {"without timing", "of the host", "on the streams", PLAIN, Wait::OfHost, Launches::OnTheStreams},
      {"without timing", "of the host, for the whole context", "on the streams", PLAIN, Wait::OfHostForContext, Launches::OnTheStreams},
      {"with timing", "of the stream", "on the streams", TIMED, Wait::OfStream, Launches::OnTheStreams},
      {"for other processes, too", "of the stream", "on the streams", SHARED, Wait::OfStream, Launches::OnTheStreams},
  };
  bool held = true;
  std::puts("event,wait,launches of graphs by a second thread,visits,launches,visits whose check ran too early");
  for (const Case &of : cases) {
    Run run{of, context, seconds, std::vector<CUstream>(STREAMS)};
    for (auto &stream : run.streams) stream = make_stream();
    run.visit();
    for (auto &stream : run.streams) TRY(cuStreamDestroy(stream));
    const Result &result = run.result;
    held = held && result.early == 0;
    std::printf("\"%s\",\"%s\",\"%s\",%llu,%llu,%llu\n", of.event, of.wait_name, of.place, result.visits, result.launches, result.early);
    std::fflush(stdout);
  }
  return held ? 0 : 1;
}
