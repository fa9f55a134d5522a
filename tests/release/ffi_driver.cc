// Calls FFI targets of a shared object with recorded arguments, without XLA: for libraries of another machine, under
// emulation. `ffi_driver LIBRARY CALLS RESULTS`; recorded_calls.py writes CALLS and reads RESULTS.
//
//   CALLS    count, then per call: name, arguments (dtype, rank, dims, bytes), results (dtype, rank, dims), attributes
//            (name, float); numbers are int64, texts and bytes come after their length
//   RESULTS  the bytes of every result, one after another

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "xla/ffi/api/c_api.h"

namespace {

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "ffi_driver: %s\n", why.c_str());
  std::exit(1);
}

// The threads that a library gives work to: each task gets its own.
struct Threads {
  std::mutex lock;
  std::vector<std::thread> running;
  void join() {
    for (auto& thread : running) thread.join();
    running.clear();
  }
};
Threads threads;

XLA_FFI_Error* schedule(XLA_FFI_ThreadPool_Schedule_Args* args) {
  std::lock_guard<std::mutex> guard(threads.lock);
  threads.running.emplace_back(args->task, args->data);
  return nullptr;
}
XLA_FFI_Error* num_threads(XLA_FFI_ThreadPool_NumThreads_Args* args) {
  *args->num_threads = 2;
  return nullptr;
}
XLA_FFI_Error* create_error(XLA_FFI_Error_Create_Args* args) { fail(args->message); }

class Reader {
 public:
  explicit Reader(const char* path) : file_(path, std::ios::binary) {
    if (!file_) fail(std::string("cannot read ") + path);
  }
  int64_t number() {
    int64_t value;
    read(&value, 8);
    return value;
  }
  std::string text() {
    std::string value(number(), 0);
    read(value.data(), value.size());
    return value;
  }
  void read(void* to, size_t size) {
    if (!file_.read(static_cast<char*>(to), size)) fail("the calls end too early");
  }

 private:
  std::ifstream file_;
};

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// An array, aligned as XLA's are.
struct Array {
  XLA_FFI_Buffer buffer{};
  std::vector<int64_t> dims;
  int64_t bytes;
  std::unique_ptr<void, Free> memory;

  Array(Reader& calls, bool filled) {
    buffer.struct_size = XLA_FFI_Buffer_STRUCT_SIZE;
    buffer.dtype = static_cast<XLA_FFI_DataType>(calls.number());
    dims.resize(calls.number());
    for (auto& size : dims) size = calls.number();
    bytes = calls.number();
    memory.reset(std::aligned_alloc(64, (bytes + 64) / 64 * 64));
    if (filled) calls.read(memory.get(), bytes);
    else std::memset(memory.get(), 0xff, bytes);
    buffer.data = memory.get();
    buffer.rank = dims.size();
    buffer.dims = dims.data();
  }
};

struct Attribute {
  std::string name;
  float value;
  XLA_FFI_ByteSpan span;
  XLA_FFI_Scalar scalar;
  explicit Attribute(Reader& calls) : name(calls.text()) {
    calls.read(&value, 4);
    span = {name.data(), name.size()};
    scalar = {XLA_FFI_DataType_F32, &value};
  }
};

template <typename Thing, typename... Given>
std::vector<std::unique_ptr<Thing>> several(Reader& calls, Given... given) {
  std::vector<std::unique_ptr<Thing>> things(calls.number());
  for (auto& thing : things) thing = std::make_unique<Thing>(calls, given...);
  return things;
}

void run_call(const XLA_FFI_Api& api, void* library, Reader& calls, std::ofstream& results) {
  const std::string name = calls.text();
  auto* handler = reinterpret_cast<XLA_FFI_Handler*>(dlsym(library, name.c_str()));
  if (!handler) fail("there is no target " + name);
  auto arguments = several<Array>(calls, true), outputs = several<Array>(calls, false);
  auto attributes = several<Attribute>(calls);
  std::vector<XLA_FFI_ArgType> argument_types(arguments.size(), XLA_FFI_ArgType_BUFFER);
  std::vector<XLA_FFI_RetType> output_types(outputs.size(), XLA_FFI_RetType_BUFFER);
  std::vector<XLA_FFI_AttrType> attribute_types(attributes.size(), XLA_FFI_AttrType_SCALAR);
  std::vector<void*> argument_list, output_list, attribute_list;
  std::vector<XLA_FFI_ByteSpan*> names;
  for (auto& array : arguments) argument_list.push_back(&array->buffer);
  for (auto& array : outputs) output_list.push_back(&array->buffer);
  for (auto& attribute : attributes) {
    names.push_back(&attribute->span);
    attribute_list.push_back(&attribute->scalar);
  }
  XLA_FFI_CallFrame frame{};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.api = &api;
  frame.stage = XLA_FFI_ExecutionStage_EXECUTE;
  frame.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, static_cast<int64_t>(argument_list.size()), argument_types.data(),
                argument_list.data()};
  frame.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, static_cast<int64_t>(output_list.size()), output_types.data(),
                output_list.data()};
  frame.attrs = {XLA_FFI_Attrs_STRUCT_SIZE, nullptr, static_cast<int64_t>(attribute_list.size()),
                 attribute_types.data(), names.data(), attribute_list.data()};
  handler(&frame);  // what it finds wrong ends the program in create_error
  threads.join();
  for (auto& array : outputs) results.write(static_cast<char*>(array->memory.get()), array->bytes);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) fail("usage: ffi_driver LIBRARY CALLS RESULTS");
  void* library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) fail(dlerror());
  XLA_FFI_Api api{};
  api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
  api.XLA_FFI_Error_Create = create_error;
  api.XLA_FFI_ThreadPool_Schedule = schedule;
  api.XLA_FFI_ThreadPool_NumThreads = num_threads;
  Reader calls(arguments[2]);
  std::ofstream results(arguments[3], std::ios::binary);
  for (int64_t left = calls.number(); left > 0; --left) run_call(api, library, calls, results);
  if (!results.flush()) fail("the results could not be written");
}
