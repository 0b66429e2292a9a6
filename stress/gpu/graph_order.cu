// Asks a driver whether a wait of a stream for an event holds while another thread launches graphs on the stream of the event.
//
//   nvcc -std=c++17 -O2 -arch=native -o graph_order stress/gpu/graph_order.cu -lcuda && ./graph_order SECONDS
//
// A thread moves blocks between streams: an event is recorded on the stream that wrote a block last, the next stream waits for the
// event, checks the block, and writes it anew. A check that finds another generation than the last ran before a write that it
// waits for. Beside it, a second thread launches a graph of one empty kernel. Each row of the first table is SECONDS of one kind of
// event, of one kind of wait, and of one place of the launches. The second table has the time of the calls with an event. The exit
// status is 1 if a check ran too early.
#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
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

constexpr int STREAMS = 8, BLOCKS = 256, THREADS = 256;
constexpr unsigned WORDS = 1 << 12;
// Visits on the way to the device at most.
constexpr int DEPTH = 64;
// Some writes take this long, so that the stream of a check has to wait for them.
constexpr unsigned LONG_WRITE_US = 40;

__device__ unsigned long long time_ns() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

__global__ void write_block(unsigned *at, unsigned generation, unsigned us) {
  for (const unsigned long long begin = time_ns(); time_ns() - begin < us * 1000ull;) {}
  for (unsigned i = threadIdx.x; i < WORDS; i += THREADS) at[i] = generation;
}

__global__ void check_block(const unsigned *at, unsigned generation, unsigned long long *early) {
  __shared__ unsigned differs;
  if (threadIdx.x == 0) differs = 0;
  __syncthreads();
  for (unsigned i = threadIdx.x; i < WORDS; i += THREADS)
    if (at[i] != generation) differs = 1;
  __syncthreads();
  if (threadIdx.x == 0 && differs) atomicAdd(early, 1ull);
}

__global__ void nothing() {}

// Where the second thread launches its graph.
enum class Launches { None, OnTheStreams, OnItsOwnStream, BetweenRecords };

// Who waits for the event.
enum class Waiter { Stream, Host };

struct Result {
  unsigned long long visits = 0, graphs = 0, early = 0;
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

static CUgraphExec make_graph() {
  CUstream stream = make_stream();
  CUgraph graph;
  CUgraphExec ready;
  TRY(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  nothing<<<1, 1, 0, stream>>>();
  TRY(cuStreamEndCapture(stream, &graph));
  TRY(cuGraphInstantiate(&ready, graph, 0));
  TRY(cuGraphDestroy(graph));
  TRY(cuStreamDestroy(stream));
  return ready;
}

// Launches a graph until `ends`. With `record`, never while the lock is held.
static unsigned long long launch(const std::vector<CUstream> &streams, std::mutex *record, const std::atomic<bool> &ends) {
  std::mt19937 random(2);
  CUgraphExec graph = make_graph();
  unsigned long long graphs = 0;
  while (!ends) {
    CUstream stream = streams[random() % streams.size()];
    for (int i = 0; i < 20; i++, graphs++) {
      {
        std::unique_lock<std::mutex> alone;
        if (record) alone = std::unique_lock<std::mutex>(*record);
        TRY(cuGraphLaunch(graph, stream));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    TRY(cuStreamSynchronize(stream));
  }
  TRY(cuGraphExecDestroy(graph));
  return graphs;
}

static Result measure(CUcontext context, unsigned flags, Waiter waiter, Launches launches, double seconds) {
  std::vector<CUstream> streams(STREAMS), own{make_stream()};
  for (auto &stream : streams) stream = make_stream();
  std::vector<CUevent> pace(DEPTH);
  for (auto &event : pace) event = make_event(CU_EVENT_DISABLE_TIMING);
  CUevent order = make_event(flags);
  CUdeviceptr memory, counter;
  TRY(cuMemAlloc(&memory, sizeof(unsigned) * WORDS * BLOCKS));
  TRY(cuMemAlloc(&counter, sizeof(Result::early)));
  TRY(cuMemsetD32(memory, 0, size_t(WORDS) * BLOCKS));
  TRY(cuMemsetD32(counter, 0, 2));
  std::vector<std::vector<int>> of_stream(STREAMS);
  std::vector<unsigned> generation(BLOCKS);
  for (int block = 0; block < BLOCKS; block++) of_stream[block % STREAMS].push_back(block);
  TRY(cuCtxSynchronize());

  Result result;
  std::atomic<bool> ends{false};
  std::mutex record;
  std::thread launcher([&] {
    TRY(cuCtxSetCurrent(context));
    if (launches == Launches::None) return;
    result.graphs = launch(launches == Launches::OnItsOwnStream ? own : streams, launches == Launches::BetweenRecords ? &record : nullptr, ends);
  });
  std::mt19937 random(1);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < end) {
    const int from = random() % STREAMS, to = random() % STREAMS;
    if (from == to || of_stream[from].empty()) continue;
    auto &here = of_stream[from];
    std::swap(here[random() % here.size()], here.back());
    const int block = here.back();
    here.pop_back();
    {
      std::lock_guard<std::mutex> alone(record);
      TRY(cuEventRecord(order, streams[from]));
    }
    if (waiter == Waiter::Stream) TRY(cuStreamWaitEvent(streams[to], order, 0));
    else TRY(cuEventSynchronize(order));
    auto *at = reinterpret_cast<unsigned *>(memory) + size_t(WORDS) * block;
    check_block<<<1, THREADS, 0, streams[to]>>>(at, generation[block], reinterpret_cast<unsigned long long *>(counter));
    write_block<<<1, THREADS, 0, streams[to]>>>(at, ++generation[block], random() % 8 ? 0 : 1 + random() % LONG_WRITE_US);
    of_stream[to].push_back(block);
    CUevent paced = pace[result.visits++ % DEPTH];
    TRY(cuEventSynchronize(paced));
    TRY(cuEventRecord(paced, streams[to]));
  }
  ends = true;
  launcher.join();
  TRY(cuCtxSynchronize());
  TRY(cuMemcpyDtoH(&result.early, counter, sizeof result.early));
  for (auto &event : pace) TRY(cuEventDestroy(event));
  TRY(cuEventDestroy(order));
  for (auto &stream : streams) TRY(cuStreamDestroy(stream));
  TRY(cuStreamDestroy(own[0]));
  TRY(cuMemFree(memory));
  TRY(cuMemFree(counter));
  return result;
}

// The median of the nanoseconds of calls.
template <typename Call>
static double median_ns(const std::vector<CUevent> &events, Call call) {
  std::vector<double> times;
  for (CUevent event : events) {
    const auto begin = std::chrono::steady_clock::now();
    call(event);
    times.push_back(std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

static void print_times(const char *name, unsigned flags) {
  CUstream first = make_stream(), second = make_stream();
  std::vector<CUevent> events(500);
  for (auto &event : events) event = make_event(flags);
  const double record = median_ns(events, [&](CUevent event) { TRY(cuEventRecord(event, first)); });
  TRY(cuStreamSynchronize(first));
  const double question = median_ns(events, [&](CUevent event) { TRY(cuEventQuery(event)); });
  const double wait = median_ns(events, [&](CUevent event) { TRY(cuStreamWaitEvent(second, event, 0)); });
  TRY(cuStreamSynchronize(second));
  for (auto &event : events) TRY(cuEventDestroy(event));
  // The largest number that a process has at a time, up to 10,000.
  events.clear();
  for (CUevent event; events.size() < 10000 && cuEventCreate(&event, flags) == CUDA_SUCCESS;) events.push_back(event);
  std::printf("| %s | %.0f | %.0f | %.0f | %s%zu |\n", name, record, question, wait, events.size() < 10000 ? "" : "more than ", events.size());
  for (auto &event : events) TRY(cuEventDestroy(event));
  TRY(cuStreamDestroy(first));
  TRY(cuStreamDestroy(second));
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
  const struct {
    const char *event, *waiter, *place;
    unsigned flags;
    Waiter waits;
    Launches launches;
  } cases[] = {
      {"without timing", "stream", "none", CU_EVENT_DISABLE_TIMING, Waiter::Stream, Launches::None},
      {"without timing", "stream", "on the streams", CU_EVENT_DISABLE_TIMING, Waiter::Stream, Launches::OnTheStreams},
      {"without timing", "stream", "on a stream of its own", CU_EVENT_DISABLE_TIMING, Waiter::Stream, Launches::OnItsOwnStream},
      {"without timing", "stream", "on the streams, not during a record", CU_EVENT_DISABLE_TIMING, Waiter::Stream, Launches::BetweenRecords},
      {"without timing", "host", "on the streams", CU_EVENT_DISABLE_TIMING, Waiter::Host, Launches::OnTheStreams},
      {"with timing", "stream", "on the streams", CU_EVENT_DEFAULT, Waiter::Stream, Launches::OnTheStreams},
      {"for other processes, too", "stream", "none", CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS, Waiter::Stream, Launches::None},
      {"for other processes, too", "stream", "on the streams", CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS, Waiter::Stream, Launches::OnTheStreams},
  };
  bool held = true;
  std::puts("| event | who waits | launches of graphs by a second thread | visits | launches | checks that ran too early |\n|---|---|---|--:|--:|--:|");
  for (const auto &one : cases) {
    const Result result = measure(context, one.flags, one.waits, one.launches, seconds);
    held = held && result.early == 0;
    std::printf("| %s | %s | %s | %llu | %llu | %llu |\n", one.event, one.waiter, one.place, result.visits, result.graphs, result.early);
    std::fflush(stdout);
  }
  std::puts("\n| event | record, ns | question, ns | wait of a stream, ns | events of a process |\n|---|--:|--:|--:|--:|");
  print_times("without timing", CU_EVENT_DISABLE_TIMING);
  print_times("with timing", CU_EVENT_DEFAULT);
  print_times("for other processes, too", CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
  return held ? 0 : 1;
}
