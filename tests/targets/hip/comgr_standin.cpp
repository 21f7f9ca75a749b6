// A stand-in of libamd_comgr: every function tells a handler its name and its arguments, and returns what the
// handler answers.  Handles are structures that are passed by value, as in the library's header.
typedef unsigned long size_t;
typedef unsigned long long uint64_t;
typedef int (*handler_type)(const char*, const uint64_t*, int);
typedef struct { uint64_t handle; } data_t;
typedef struct { uint64_t handle; } data_set_t;
typedef struct { uint64_t handle; } action_info_t;

#define API extern "C" __attribute__((visibility("default")))

static handler_type handler;

API void standin_handler(handler_type given) { handler = given; }

template <class... Given>
static int tell(const char* name, Given... given) {
  const uint64_t words[] = {(uint64_t)given..., 0};
  return handler(name, words, sizeof...(given));
}

#define DECLARE(name, parameters, ...) \
  API int amd_comgr_##name parameters { return tell(#name, __VA_ARGS__); }

API void amd_comgr_get_version(size_t* major, size_t* minor) { tell("get_version", major, minor); }

DECLARE(create_data, (int kind, data_t* made), kind, made)
DECLARE(set_data, (data_t data, size_t size, const char* bytes), data.handle, size, bytes)
DECLARE(set_data_name, (data_t data, const char* name), data.handle, name)
DECLARE(get_data, (data_t data, size_t* size, char* bytes), data.handle, size, bytes)
DECLARE(release_data, (data_t data), data.handle)
DECLARE(create_data_set, (data_set_t * made), made)
DECLARE(data_set_add, (data_set_t set, data_t data), set.handle, data.handle)
DECLARE(destroy_data_set, (data_set_t set), set.handle)
DECLARE(create_action_info, (action_info_t * made), made)
DECLARE(destroy_action_info, (action_info_t info), info.handle)
DECLARE(action_info_set_language, (action_info_t info, int language), info.handle, language)
DECLARE(action_info_set_isa_name, (action_info_t info, const char* name), info.handle, name)
DECLARE(action_info_set_option_list, (action_info_t info, const char** options, size_t count),
        info.handle, options, count)
DECLARE(action_info_set_logging, (action_info_t info, bool logging), info.handle, logging)
DECLARE(do_action, (int kind, action_info_t info, data_set_t from, data_set_t to),
        kind, info.handle, from.handle, to.handle)
DECLARE(action_data_count, (data_set_t set, int kind, size_t* made), set.handle, kind, made)
DECLARE(action_data_get_data, (data_set_t set, int kind, size_t index, data_t* made),
        set.handle, kind, index, made)
