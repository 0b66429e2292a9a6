/* A library whose thread-local variables take 24 KiB of every thread's block, as the Rust compiler's do. */
__thread char locals[24 << 10] __attribute__((tls_model("initial-exec")));

char *first_local(void) { return locals; }
