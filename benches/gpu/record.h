// Reads the recorded programs that the programs of this folder replay.
#ifndef CACHALOT_BENCHES_RECORD_H
#define CACHALOT_BENCHES_RECORD_H

#include "check.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

// A request, or the free of an earlier one.
struct Step {
  bool requests;
  std::uint32_t block;
  std::uint32_t stream;
  std::size_t bytes;
};

// A recorded program, all of whose blocks are freed at the end.
struct Program {
  std::string name;
  std::vector<Step> steps;
  std::uint32_t blocks = 0;
  std::uint32_t streams = 0;
  std::size_t peak_live = 0;
};

inline std::string name_of(std::string_view path) {
  path.remove_prefix(path.rfind('/') == path.npos ? 0 : path.rfind('/') + 1);
  return std::string(path.substr(0, path.find('.')));
}

// Turns the lines of a record into steps.
class Reader {
 public:
  explicit Reader(std::string name) { program_.name = std::move(name); }

  // Reads a line `action,addr,size,stream[,note]`. Actions other than `a` and `f` tell what the recorded allocator did.
  void line(const char *text) {
    unsigned long long address = 0, stream = 0, bytes = 0;
    char action = 0;
    if (std::sscanf(text, "%c,%llx,%llu,%llx", &action, &address, &bytes, &stream) != 4) {
      return;
    }
    if (action == 'a' && bytes > 0) {
      const auto number = streams_.emplace(stream, static_cast<std::uint32_t>(streams_.size())).first->second;
      live_[address] = program_.steps.size();
      program_.steps.push_back({true, program_.blocks++, number, bytes});
      now_ += bytes;
      program_.peak_live = std::max(program_.peak_live, now_);
    } else if (action == 'f') {
      if (const auto found = live_.find(address); found != live_.end()) {
        free(found->second);
        live_.erase(found);
      }
    }
  }

  Program finish() {
    std::vector<std::size_t> left;
    for (const auto &[address, request] : live_) {
      left.push_back(request);
    }
    std::sort(left.begin(), left.end());
    std::for_each(left.begin(), left.end(), [this](std::size_t request) { free(request); });
    program_.streams = static_cast<std::uint32_t>(streams_.size());
    return std::move(program_);
  }

 private:
  void free(std::size_t request) {
    Step step = program_.steps[request];
    now_ -= step.bytes;
    step.requests = false;
    program_.steps.push_back(step);
  }

  Program program_;
  // The number of each stream: the stream 0, on which every program starts, is the default stream.
  std::unordered_map<unsigned long long, std::uint32_t> streams_{{0, 0}};
  // The step that requested the block at each address.
  std::unordered_map<unsigned long long, std::size_t> live_;
  std::size_t now_ = 0;
};

inline Program read(const std::string &path) {
  FILE *file = popen(("gzip -dc -- '" + path + "'").c_str(), "r");
  check(file != nullptr, "popen");
  Reader reader(name_of(path));
  char text[512];
  while (std::fgets(text, sizeof text, file)) {
    reader.line(text);
  }
  check(pclose(file) == 0, path.c_str());
  return reader.finish();
}

#endif
