
// ---------------------------------------------------------------- errors, and the size of a pool

TILEWRIGHT_EXPORT const char* tilewright_error_name(int error) {
  static const char* const names[] = {
      "TILEWRIGHT_OK",        "TILEWRIGHT_MISSING", "TILEWRIGHT_EXTENTS",   "TILEWRIGHT_STRIDES",
      "TILEWRIGHT_ALIGNMENT", "TILEWRIGHT_OVERLAP", "TILEWRIGHT_LIMIT",     "TILEWRIGHT_WORKSPACE",
      "TILEWRIGHT_MACHINE",   "TILEWRIGHT_DRIVER",  "TILEWRIGHT_STUCK"};
  const unsigned kind = error & 255;
  return kind < sizeof names / sizeof *names ? names[kind] : "unknown error";
}

TILEWRIGHT_EXPORT const char* tilewright_error_text(int error) {
  static const char* const texts[] = {
      "the call succeeded",
      "an array is a null pointer",
      "an extent is out of range, differs from another array's, or has the wrong divisor",
      "a stride is not that of an exported class",
      "an address is no multiple of the bytes that the class asks for",
      "a written array shares memory with another array, or with itself",
      "the kernel does not serve these sizes, or the device does not hold the grid",
      "the workspace is too small, or not aligned to 256 bytes",
      "no kernel was exported for this processor or device",
      "the driver is missing, or refused the call",
      "blocks wait for each other for ever; results are incomplete"};
  const unsigned kind = error & 255;
  return kind < sizeof texts / sizeof *texts ? texts[kind] : "unknown error";
}

TILEWRIGHT_EXPORT int tilewright_error_argument(int error) { return error >> 8; }

TILEWRIGHT_EXPORT unsigned long long tilewright_pool_bytes(int workers) {
  return sizeof(tilewright::Pool) + (workers > 1 ? workers - 1 : 0) * sizeof(tilewright::Seat);
}

TILEWRIGHT_EXPORT int tilewright_pool_workers(const tilewright::Pool* pool) { return pool->workers; }
