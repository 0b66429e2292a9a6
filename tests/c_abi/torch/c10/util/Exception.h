/*
 * Stands in for PyTorch's header of this name, where there is no PyTorch: as much of it as the shim uses.
 */
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

namespace c10 {

struct SourceLocation {
  const char *function;
  const char *file;
  uint32_t line;
};

class Error : public std::exception {
  std::string text;

 public:
  Error(SourceLocation, std::string message) : text(std::move(message)) {}
  const char *what() const noexcept override { return text.c_str(); }
};

class OutOfMemoryError : public Error {
  using Error::Error;
};

}  // namespace c10
