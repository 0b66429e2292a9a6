/* Starts a thread with each of the small stacks that programs choose, and prints the codes. */
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>

static void *nothing(void *unused) { return unused; }

int main(void) {
    for (size_t kibibytes = 16; kibibytes <= 128; kibibytes *= 2) {
        pthread_attr_t attributes;
        pthread_t thread;
        pthread_attr_init(&attributes);
        pthread_attr_setstacksize(&attributes, kibibytes << 10);
        int code = pthread_create(&thread, &attributes, nothing, NULL);
        printf("%d ", code);
        if (code == 0) {
            pthread_join(thread, NULL);
        }
    }
    return 0;
}
